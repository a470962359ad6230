"""Bring a journal back from a store: the newest sound checkpoint, and the log that leads on from it.

Everything is written beside the journal's folder and renamed into place at the end, so a pull that dies leaves no journal
that looks whole; what it had is used by the next one. Each byte is compared with the digest that was taken when it was sent.
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
from ...recovery.facts import read_facts
from ...recovery.history import build_history
from ...recovery.plan import plan_recovery
from ...stores import STALL_SECONDS, PatientStore, Store, open_store, split_url
from ..inventory.listing import places_in
from ..inventory.manifest import Manifest, Shipped, manifest_names, read_first_sound, writer_of
from ..sending.plan import chain_from, look_of, reach
from .fetch import fetch_item

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]

_SUFFIX = ".pulling"
_THREADS = 4
_LOOKS_MAX = 3  # a manifest can become old while its objects are read


@dataclass(slots=True)
class Pulled:
    """What a pull brought.

    Attributes:
        folder: of the journal.
        step: that recovery from it comes to.
        steps_lost: steps that the store should have had, and that could not be read.
        checkpoint_step: of the checkpoint.
        nbytes: read from the store.
        notes: what could not be had, one sentence each.
    """

    folder: Path
    step: int = 0
    steps_lost: int = 0
    checkpoint_step: int = 0
    nbytes: int = 0
    notes: list[str] = field(default_factory=list)


def find_run(url: str) -> tuple[str, list[str]]:
    """From the address of a run, or of a folder that holds one, to that of the store around it, and the run's journals there:
    "RUN/rank0" and so on.

    Raises:
        StoreRefused, StoreUnavailable: as `open_store` and the store say.
        UsageError: there is no run, or several.
    """
    base, name = split_url(url)
    with PatientStore(open_store(base), STALL_SECONDS) as store:
        store.demand_place()
        found = set(places_in(store, name))
    runs = {place.rpartition("/")[0] for place in found}
    if not found:
        raise UsageError(f"{url}: the store holds no run there")
    if len(runs) > 1:
        names = ", ".join(sorted(run.removeprefix(f"{name}/") for run in runs))
        raise UsageError(
            f"{url} holds several runs: {names}. Give the address of one of them; `tranlogs store list` shows them"
        )
    if "" in runs:
        raise UsageError(f"{url} is one rank of a run; give the address of the run, {base}")
    if runs != {name}:  # the address of the folder around the run
        base, found = url, {place.removeprefix(f"{name}/") for place in found}
    return base, sorted(found, key=lambda place: (len(place), place))


def pull(store: Store, place: str, folder: Path, *, everything: bool = False, progress: Progress | None = None) -> Pulled:
    """Bring the journal at `place` to `folder`, where none may be yet.

    Args:
        store: where from.
        place: the journal's place there, "RUN/rank0".
        folder: of the journal, RUN/rank0.
        everything: all that the store has, instead of what recovery to the newest step needs.
        progress: called with ("pull", bytes done, bytes in all).

    Raises:
        UsageError: a journal is there already.
        NotARun: the store has none.
        CorruptObject: no checkpoint of it can be read.
        StoreUnavailable: the store does not answer.
    """
    if folder.exists():
        raise UsageError(f"{folder} is there already; pull into another run folder, or move it away")
    names = manifest_names(store, place)
    newest, _, notes = read_first_sound(store, names)
    for _ in range(_LOOKS_MAX):
        manifest = newest
        if manifest is None:
            why = f"the store {store.url} holds no journal at {place}" + "".join(f"; {note}" for note in notes)
            raise NotARun(folder, why, "Give the address of a run in it: URL/RUN")
        pulled = Pulled(folder, notes=notes)
        brought = _fetch(store, manifest, folder, everything, progress, pulled)
        if brought.here and not pulled.steps_lost:
            break
        names = manifest_names(store, place)
        newest, _, notes = read_first_sound(store, names)  # what is missing may have been given up meanwhile
        if newest is not None and newest.number == manifest.number:
            break
    assert manifest is not None
    if not manifest.checkpoints:
        raise NotARun(folder, f"no checkpoint of it has come to the store {store.url} yet", "")
    if not brought.here:
        raise CorruptObject(f"{store.url}/{place}", "no checkpoint of it can be read: " + "; ".join(pulled.notes))
    _finish(store, manifest, writer_of(names[0])[0], folder, brought, pulled)
    return pulled


@dataclass(slots=True)
class _Brought:
    """What the journal begins with.

    Attributes:
        here: what it has, nothing if no checkpoint could be read.
        there: what the store has of its past: all that was not found to be unreadable, and leads no further than it has come.
    """

    here: list[Shipped] = field(default_factory=list)
    there: list[Shipped] = field(default_factory=list)


def _fetch(
    store: Store, manifest: Manifest, folder: Path, everything: bool, progress: Progress | None, pulled: Pulled
) -> _Brought:
    """Read what is needed into the folder beside."""
    target = folder.with_name(folder.name + _SUFFIX)
    make_folder(target / "log")
    make_folder(target / "checkpoints")
    _forget_others(target, manifest)
    limits, items = look_of(manifest).limits, list(manifest.shipped.values())
    reading = _Reading(store, target, progress, pulled)
    if everything:
        reading.read(items)
    checkpoints = [
        one.row for one in manifest.checkpoints if isinstance(one.row, CheckpointRow) and is_on_lineage(one.row, limits)
    ]
    wanted = reach(checkpoints, manifest.segments, manifest.timelines, limits)
    for row in sorted(checkpoints, key=lambda row: row.sequence, reverse=True):
        way = chain_from(row, manifest.segments, manifest.timelines, limits)
        reading.read([manifest.shipped[row.name], *way])
        if row.name in reading.unreadable:
            pulled.notes.append(f"the checkpoint of step {row.step} cannot be read; an older one is used if there is one")
            continue
        while not reading.read(way):
            sound = [one for one in manifest.segments if one.objects.name not in reading.unreadable]
            way = chain_from(row, sound, manifest.timelines, limits)
        pulled.checkpoint_step, pulled.step = row.step, reach([row], way, manifest.timelines, limits)
        pulled.steps_lost = max(wanted - pulled.step, 0)
        end = max([row.sequence, *(one.objects.boundary_sequence for one in way)])
        there = [
            one
            for one in items
            if one.objects.name not in reading.unreadable and (one in way or not pulled.steps_lost or not _leads_past(one, end))
        ]
        return _Brought([one for one in there if one.objects.name in reading.done], there)
    return _Brought()


def _leads_past(one: Shipped, end: int) -> bool:
    """Whether it is of what could not be had: the journal goes on before it."""
    return isinstance(one.row, SegmentRow) and one.objects.end_sequence > end


def _forget_others(target: Path, manifest: Manifest) -> None:
    """Of what an earlier attempt left, keep what this manifest names."""
    for path in [*(target / "log").iterdir(), *(target / "checkpoints").iterdir()]:
        if path.name not in manifest.shipped:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in target.glob("catalog.lmdb*"):
        path.unlink()


@dataclass(slots=True)
class _Reading:
    """Reads items into a folder, each once.

    Attributes:
        done: names of those that were read whole.
        unreadable: of those that could not be.
    """

    store: Store
    target: Path
    progress: Progress | None
    pulled: Pulled
    done: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)

    def read(self, items: Sequence[Shipped]) -> bool:
        """Read what was not tried yet; whether all of it is there."""
        todo = [one for one in items if one.objects.name not in self.done | self.unreadable]
        total, at = sum(one.nbytes for one in todo), 0
        with ThreadPoolExecutor(_THREADS, "tranlogs-pull") as pool:
            for one, result in [(one, pool.submit(fetch_item, self.store, one, self.target)) for one in todo]:
                try:
                    self.pulled.nbytes += result.result()
                    self.done.add(one.objects.name)
                except CorruptObject as error:
                    self.pulled.notes.append(str(error))
                    self.unreadable.add(one.objects.name)
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
                at += one.nbytes
                if self.progress is not None:
                    self.progress("pull", at, total)
        return self.done.issuperset(one.objects.name for one in items)


def _judge(target: Path, pulled: Pulled) -> None:
    """Ask recovery itself how far it comes with what was brought."""
    facts = read_facts(target)
    limits = trace_lineage(facts.timelines, facts.timeline)
    plan = plan_recovery(facts.checkpoints, build_history(facts.segments, limits), limits, timeline=facts.timeline)
    if plan.position.step < pulled.step:
        pulled.notes.append(f"the log that was brought ends at step {plan.position.step}, not at {pulled.step}")
        pulled.steps_lost += pulled.step - plan.position.step
        pulled.step = plan.position.step


def _finish(store: Store, manifest: Manifest, seen: int, folder: Path, brought: _Brought, pulled: Pulled) -> None:
    """The catalog of what was brought, and the rename that makes it a journal; `seen` is the number of the newest manifest: it
    can be another one, which cannot be read, and in the place of which this journal goes on."""
    target = folder.with_name(folder.name + _SUFFIX)
    catalog = Catalog.open(target, writable=True)
    try:
        with catalog.transaction() as tables:
            tables.put("run", manifest.run)
            for timeline in manifest.timelines:
                tables.put(timeline_key(timeline.number), timeline)
            for one in brought.here:
                if isinstance(one.row, SegmentRow):
                    size = (target / "log" / one.row.file).stat().st_size
                    tables.put(segment_key(one.row.ordinal), replace(one.row, state="sealed", size=size, used_bytes=size))
                else:
                    tables.put(f"checkpoint/{one.row.name}", one.row)
            for one in brought.there:
                tables.put(f"shipped/{one.objects.name}", one.objects)
            tables.put("store", StoreRow(store.url, secrets.token_hex(8), seen, manifest.at))
        _judge(target, pulled)
        with catalog.transaction() as tables:
            tables.put("watermarks", Watermarks(pulled.step, pulled.step, pulled.step, pulled.step, manifest.at))
    finally:
        catalog.close()
    (target / "catalog.lmdb-lock").unlink(missing_ok=True)
    sync_folder(target)
    hit("pull.publish")
    os.rename(target, folder)  # commit point
    sync_folder(folder.parent)
    _log.info("%s: pulled from %s, up to step %d", folder, store.url, pulled.step)
