"""Download of a journal from a store: the newest intact checkpoint, and the log after it.

Files are written to a temporary folder, which is renamed at the end: a pull that dies leaves nothing that looks like a
journal, and the next pull continues with its files. Every byte is compared with the digest that was taken at the upload.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...base.atomic_files import make_folder, sync_folder
from ...base.errors import CorruptObject, NotARun, UsageError
from ...base.failpoints import hit
from ...catalog import Catalog, CheckpointRow, SegmentRow, StoreRow, Watermarks, segment_key, timeline_key
from ...catalog.lineage import is_on_lineage, trace_lineage
from ...recovery.history import build_history
from ...recovery.journal_facts import read_facts
from ...recovery.recovery_plan import plan_recovery
from ...stores import STALL_SECONDS, Store, TimeoutStore, open_store, split_url
from ..inventory.store_listing import find_prefixes
from ..items.shipping_plan import find_chain, find_recoverable_step, list_contents
from ..manifest import Manifest, ShippedItem, manifest_names, parse_manifest_name, read_first_sound
from .item_download import fetch_item

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]

_SUFFIX = ".pulling"
_THREADS = 4
_ATTEMPTS_MAX = 3  # Once a newer manifest is published, objects of an older one may be deleted while they are read.


@dataclass(slots=True)
class PullResult:
    """Result of a pull.

    Attributes:
        folder: the journal's folder.
        step: the step that recovery reaches from the fetched files.
        steps_lost: number of steps that the store's manifest names and that could not be read.
        checkpoint_step: step of the checkpoint.
        nbytes: bytes read from the store.
        notes: what could not be read, one sentence each.
    """

    folder: Path
    step: int = 0
    steps_lost: int = 0
    checkpoint_step: int = 0
    nbytes: int = 0
    notes: list[str] = field(default_factory=list)


def find_run(url: str) -> tuple[str, list[str]]:
    """Split the address of a run into the store's address and the run's journals in that store ("RUN/rank0" and so on).

    The address may also be that of a folder that contains one run.

    Raises:
        StoreRefused: the address is wrong, see `open_store`.
        StoreUnavailable: the store does not answer.
        UsageError: the store holds no run at this address, or several.
    """
    base, name = split_url(url)
    with TimeoutStore(open_store(base), STALL_SECONDS) as store:
        store.check_root()
        found = set(find_prefixes(store, name))
    runs = {prefix.rpartition("/")[0] for prefix in found}
    if not found:
        raise UsageError(f"{url}: the store holds no run at this address; `tranlogs status URL` lists the runs of a store")
    if len(runs) > 1:
        names = ", ".join(sorted(run.removeprefix(f"{name}/") for run in runs))
        raise UsageError(f"{url} holds several runs: {names}. Use the address of one of them; `tranlogs status URL` lists them")
    if "" in runs:
        raise UsageError(f"{url} is one rank of a run; use the address of the run: {base}")
    if runs != {name}:  # the address of a folder that contains the run
        base, found = url, {prefix.removeprefix(f"{name}/") for prefix in found}
    return base, sorted(found, key=lambda prefix: (len(prefix), prefix))


def pull(store: Store, prefix: str, folder: Path, *, everything: bool = False, progress: Progress | None = None) -> PullResult:
    """Fetch the journal at `prefix` into `folder`, which must not exist.

    Args:
        store: where to read from.
        prefix: the journal's place in the store, "RUN/rank0".
        folder: the journal's folder, RUN/rank0.
        everything: True to fetch all that the store holds, not only what recovery to the newest step needs.
        progress: called with ("pull", bytes done, total bytes).

    Raises:
        UsageError: the folder exists.
        NotARun: the store holds no such journal.
        CorruptObject: none of the journal's checkpoints can be read.
        StoreUnavailable: the store does not answer.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists already; pull into another run folder, or move this one away")
    names = manifest_names(store, prefix)
    newest, _, notes = read_first_sound(store, names)
    for _ in range(_ATTEMPTS_MAX):
        manifest = newest
        if manifest is None:
            why = f"the store {store.url} holds no journal at {prefix}" + "".join(f"; {note}" for note in notes)
            raise NotARun(folder, why, "Use the address of a run in it: URL/RUN")
        result = PullResult(folder, notes=notes)
        fetched = _fetch(store, manifest, folder, everything, progress, result)
        if fetched.local and not result.steps_lost:
            break
        names = manifest_names(store, prefix)
        newest, _, notes = read_first_sound(store, names)  # objects may be missing because a newer manifest does not name them
        if newest is not None and newest.number == manifest.number:
            break
    assert manifest is not None
    if not manifest.checkpoints:
        raise NotARun(folder, f"the store {store.url} holds no checkpoint of this journal yet", "")
    if not fetched.local:
        raise CorruptObject(f"{store.url}/{prefix}", "none of its checkpoints can be read: " + "; ".join(result.notes))
    _publish_journal(store, manifest, parse_manifest_name(names[0])[0], folder, fetched, result)
    return result


@dataclass(slots=True)
class _Fetched:
    """The items from which the journal starts.

    Attributes:
        local: items that were fetched; empty if no checkpoint could be read.
        stored: items that the store holds of the journal's history: all that were not found to be unreadable, and that do not
            extend past the step that was reached.
    """

    local: list[ShippedItem] = field(default_factory=list)
    stored: list[ShippedItem] = field(default_factory=list)


def _fetch(
    store: Store, manifest: Manifest, folder: Path, everything: bool, progress: Progress | None, result: PullResult
) -> _Fetched:
    """Download the items that are needed into the temporary folder."""
    target = folder.with_name(folder.name + _SUFFIX)
    make_folder(target / "log")
    make_folder(target / "checkpoints")
    _delete_unnamed(target, manifest)
    limits, items = list_contents(manifest).limits, list(manifest.shipped.values())
    reader = _ItemReader(store, target, progress, result)
    if everything:
        reader.read(items)
    checkpoints = [
        item.row for item in manifest.checkpoints if isinstance(item.row, CheckpointRow) and is_on_lineage(item.row, limits)
    ]
    expected = find_recoverable_step(checkpoints, manifest.segments, manifest.timelines, limits)
    for row in sorted(checkpoints, key=lambda row: row.sequence, reverse=True):
        chain = find_chain(row, manifest.segments, manifest.timelines, limits)
        reader.read([manifest.shipped[row.name], *chain])
        if row.name in reader.unreadable:
            result.notes.append(f"the checkpoint of step {row.step} cannot be read; an older one is used if there is one")
            continue
        while not reader.read(chain):
            sound = [item for item in manifest.segments if item.objects.name not in reader.unreadable]
            chain = find_chain(row, sound, manifest.timelines, limits)
        result.checkpoint_step, result.step = row.step, find_recoverable_step([row], chain, manifest.timelines, limits)
        result.steps_lost = max(expected - result.step, 0)
        end = max([row.sequence, *(item.objects.boundary_sequence for item in chain)])
        stored = [
            item
            for item in items
            if item.objects.name not in reader.unreadable
            and (item in chain or not result.steps_lost or not _extends_past(item, end))
        ]
        return _Fetched([item for item in stored if item.objects.name in reader.done], stored)
    return _Fetched()


def _extends_past(item: ShippedItem, end: int) -> bool:
    """Return True if an item belongs to the part of the log that could not be read, before which the journal now continues."""
    return isinstance(item.row, SegmentRow) and item.objects.end_sequence > end


def _delete_unnamed(target: Path, manifest: Manifest) -> None:
    """Delete files that an earlier pull left and that this manifest does not name."""
    for path in [*(target / "log").iterdir(), *(target / "checkpoints").iterdir()]:
        if path.name not in manifest.shipped:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in target.glob("catalog.lmdb*"):
        path.unlink()


@dataclass(slots=True)
class _ItemReader:
    """Downloads items into a folder, each once.

    Attributes:
        done: names of the items that were read in full.
        unreadable: names of the items that could not be read.
    """

    store: Store
    target: Path
    progress: Progress | None
    result: PullResult
    done: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)

    def read(self, items: Sequence[ShippedItem]) -> bool:
        """Read the items that were not tried yet; return True if all items were read."""
        todo = [item for item in items if item.objects.name not in self.done | self.unreadable]
        total, at = sum(item.nbytes for item in todo), 0
        with ThreadPoolExecutor(_THREADS, "tranlogs-pull") as pool:
            for item, result in [(item, pool.submit(fetch_item, self.store, item, self.target)) for item in todo]:
                try:
                    self.result.nbytes += result.result()
                    self.done.add(item.objects.name)
                except CorruptObject as error:
                    self.result.notes.append(str(error))
                    self.unreadable.add(item.objects.name)
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
                at += item.nbytes
                if self.progress is not None:
                    self.progress("pull", at, total)
        return self.done.issuperset(item.objects.name for item in items)


def _check_recovery(target: Path, result: PullResult) -> None:
    """Plan a recovery from the fetched files, and correct the result if the recovery ends at an earlier step."""
    facts = read_facts(target)
    limits = trace_lineage(facts.timelines, facts.timeline)
    plan = plan_recovery(facts.checkpoints, build_history(facts.segments, limits), limits, timeline=facts.timeline)
    if plan.position.step < result.step:
        result.notes.append(f"expected the fetched log to end at step {result.step}, it ends at step {plan.position.step}")
        result.steps_lost += result.step - plan.position.step
        result.step = plan.position.step


def _publish_journal(
    store: Store, manifest: Manifest, number: int, folder: Path, fetched: _Fetched, result: PullResult
) -> None:
    """Write the catalog of the fetched files, and rename the temporary folder to the journal's name.

    `number` is the number of the newest manifest, which may be unreadable. This journal's next manifest follows that one.
    """
    target = folder.with_name(folder.name + _SUFFIX)
    catalog = Catalog.open(target, writable=True)
    try:
        with catalog.transaction() as tables:
            tables.put("run", manifest.run)
            for timeline in manifest.timelines:
                tables.put(timeline_key(timeline.number), timeline)
            for item in fetched.local:
                if isinstance(item.row, SegmentRow):
                    size = (target / "log" / item.row.file).stat().st_size
                    tables.put(segment_key(item.row.ordinal), replace(item.row, state="sealed", size=size, used_bytes=size))
                else:
                    tables.put(f"checkpoint/{item.row.name}", item.row)
            for item in fetched.stored:
                tables.put(f"shipped/{item.objects.name}", item.objects)
            tables.put("store", StoreRow(store.url, secrets.token_hex(8), number, manifest.at))
        _check_recovery(target, result)
        with catalog.transaction() as tables:
            tables.put("watermarks", Watermarks(result.step, result.step, result.step, result.step, manifest.at))
    finally:
        catalog.close()
    (target / "catalog.lmdb-lock").unlink(missing_ok=True)
    sync_folder(target)
    hit("pull.publish")
    os.rename(target, folder)  # commit point
    sync_folder(folder.parent)
    _log.info("%s: pulled from %s, up to step %d", folder, store.url, result.step)
