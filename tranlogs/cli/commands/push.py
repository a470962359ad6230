"""`tranlogs push`: ship a run to a store once."""

from __future__ import annotations

import time
from typing import Annotated, Any

from ...base.clock import Clock
from ...base.quantities import parse_bytes, parse_seconds
from ...journal import JournalPaths
from ...journal.opening import seal_if_abandoned
from ...recovery.recover import Progress
from ...recovery.report import progress_bar
from ...shipping import Archiver, ShippingSettings, Throttle, journal_prefix
from ...stores import TimeoutStore, open_store
from .. import screen
from ..options import Json, Run, StoreCheckpoints, TakeOver, command, parse_store_checkpoints
from ..parameters import FINE, PROBLEM, Argument, Option
from ..reading.find_journals import find_journals
from ..reading.survey import Survey, survey
from ..screen import print_json

Url = Annotated[str, Argument(metavar="URL", help="Store: file:///path, alluxio://HOST:PORT/path, s3://...")]

_SEAL_SECONDS = 0.5  # A live trainer seals segments of this age on request.


@command
def push(
    run: Run,
    url: Url,
    bandwidth: Annotated[str | None, Option(help="Bytes per second, like 50MiB.")] = None,
    uploads: Annotated[int, Option(min=1, help="Number of parts to send at once.")] = 4,
    store_checkpoints: StoreCheckpoints = "2",
    patience: Annotated[str, Option(help="Stop if shipping makes no progress for this time.")] = "2min",
    take_over: TakeOver = False,
    as_json: Json = False,
) -> int:
    """Ship a run to a store, once.

    In the store, the run has its folder's name. The command ends when the store calls the whole run durable. A segment that a
    dead trainer left open is sealed. While a trainer is running, all steps are shipped that were committed when the command
    started. Objects that the store holds already are not sent again.
    """
    throttle = Throttle(None if bandwidth is None else parse_bytes(bandwidth, "--bandwidth"), uploads)
    limits = ShippingSettings(_SEAL_SECONDS, keep=parse_store_checkpoints(store_checkpoints), takes_over=take_over)
    seconds = parse_seconds(patience, "--patience")
    journals, found = find_journals(run), []
    with TimeoutStore(open_store(url), min(seconds, 60.0)) as store, progress_bar() as progress:
        for paths in journals:
            found.append(_push(paths, store, limits, throttle, seconds, progress))
    if as_json:
        print_json({"url": url, "journals": found})
    else:
        _show(found)
    return FINE if all(one["archived"] >= one["committed"] and not one["problem"] for one in found) else PROBLEM


def _push(
    paths: JournalPaths, store: Any, limits: Any, throttle: Any, patience: float, progress: Progress | None
) -> dict[str, Any]:
    seal_if_abandoned(paths)
    before, place = survey(paths.folder), journal_prefix(paths)
    archiver = Archiver(paths, store, place, limits, Clock(), throttle)
    try:
        problem = _drain(archiver, before, patience, progress)
    finally:
        archiver.close()
    found = archiver.progress()
    return {
        "folder": paths.folder,
        "store": f"{store.url}/{place}",
        "committed": before.watermarks.committed,
        "archived": found.archived,
        "persisted": found.persisted,
        "problem": problem or None,
    }


def _drain(archiver: Archiver, before: Survey, patience: float, progress: Progress | None) -> str:
    """Ship until the store holds what the run had at the start, or makes no progress; return what prevents progress.

    The committed steps are not all: they may be there before the newest checkpoint, from which a recovery starts sooner.
    """
    names = {row.name for row in before.checkpoints} | {row.file for row in before.segments if row.state == "sealed"}
    total, last, since = 0, None, time.monotonic()
    while True:
        now = archiver.run_once()
        total = max(total, now.bytes_left)
        if progress is not None and total:
            progress("push", total - now.bytes_left, total)
        has_steps = now.archived >= before.watermarks.committed and now.persisted >= now.archived
        if has_steps and archiver.has_shipped(names):
            return ""
        if now.is_refused:
            return now.problem
        if now != last:
            last, since = now, time.monotonic()
        if time.monotonic() - since > patience:
            return now.problem or f"cannot ship beyond step {now.archived}: the log after it is not sealed, or is damaged"
        archiver.wait()


def _show(found: list[dict[str, Any]]) -> None:
    for one in found:
        rows = [
            ("journal", one["folder"]),
            ("store", one["store"]),
            ("archived", f"step {one['archived']} of {one['committed']}"),
            ("persisted", f"step {one['persisted']}"),
        ]
        if one["problem"]:
            rows.append(("problem", one["problem"]))
        screen.console().print(screen.facts(rows))
