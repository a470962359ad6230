"""Carry out a recovery: scan, plan, restore, redo, compare; on damage found on the way, plan again without it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.errors import CorruptCheckpoint, CorruptRecord, RecoveryError, StateMismatch
from ..base.failpoints import hit
from ..catalog.lineage import lineage
from ..checkpoints import Checkpoint
from ..log.entry import Entry
from ..log.reader import SegmentReader
from ..log.record import EntryKind, Position
from .facts import Facts, mended, open_for_reading, open_mended, scan_segment
from .history import History, Link, build_history
from .plan import Plan, plan_recovery
from .protocol import Divergence, Recoverable, Spare

_log = logging.getLogger(__name__)

_CHUNK_FRAMES = 100_000  # descriptions held in memory at a time
_CHUNK_SEGMENTS = 32
_ATTEMPTS_MAX = 1000  # damage found on the way; each attempt rules out a checkpoint or a part of the log

Progress = Callable[[str, int, int], None]  # what, done, total
Noted = list[tuple[int, dict[str, float]]]  # step, what the loop noted there


@dataclass(slots=True)
class Recovered:
    """The outcome of `recover`."""

    plan: Plan
    position: Position
    body: dict[str, Any]  # the boundary's
    replayed: int
    seconds_load: float
    seconds_replay: float
    divergence: Divergence | None
    scalars: Noted  # at the boundaries that were passed
    notes: list[str]
    log_bytes: int  # of the log that was redone
    damaged: tuple[str, ...] = ()  # names of checkpoints that were found damaged
    parts: dict[str, bytes] = field(default_factory=dict)  # of the boundary's body, as they stand in the log

    def demand(self, position: Position) -> None:
        """Check that this is where it landed, on whatever timeline.

        Raises:
            RecoveryError: it is not: the log has changed meanwhile.
        """
        landed = self.position
        if (landed.sequence, landed.chain) != (position.sequence, position.chain):
            raise RecoveryError(f"the log has changed meanwhile: it leads to step {landed.step}, not {position.step}")


def recover(folder: Path, state: Recoverable, *, step: int | None = None, sequence: int | None = None,
            checkpoint: str | None = None, progress: Progress | None = None,
            spare: Spare | None = None) -> Recovered | None:  # fmt: skip
    """Bring `state` to the newest boundary (or to `step`). None if the run holds nothing yet.

    Args:
        folder: the journal's.
        state: what is brought back.
        step: where to land; None for as far as the log goes.
        sequence: number of the last entry to be redone; None for all.
        checkpoint: name of the checkpoint to start from; None takes the one that gives the shortest replay.
        progress: told what is done.
        spare: asked for a sound copy of what is damaged, which then takes its place.

    Raises:
        StateMismatch: `state` does not fit the run; nothing was touched.
        RecoveryError: no sound checkpoint is left, or `step` is not covered.
    """
    facts = open_mended(folder, spare, index_use="unless sealed")
    if not facts.checkpoints and not any(len(segment.locations) > 1 for segment in facts.segments):
        return None
    rows = [row for row in facts.checkpoints if checkpoint in (None, row.name)]
    limits = lineage(facts.timelines, facts.timeline)
    history = build_history(facts.segments, limits)
    broken: dict[str, str] = {}
    last_good: dict[int, int] = {}
    notes = list(facts.notes)
    is_indexed = False
    for _ in range(_ATTEMPTS_MAX):
        plan = plan_recovery(rows, history, limits, timeline=facts.timeline, step=step, sequence=sequence,
                             broken=broken, last_good=last_good)  # fmt: skip
        try:
            recovered = carry_out(folder, plan, state, notes, progress)
            recovered.damaged = tuple(broken)
            if step is None and sequence is None and plan.position.step < facts.watermarks.committed:
                recovered.notes.append(f"step {facts.watermarks.committed} had been committed; what is left of the log ends at "
                                       f"step {plan.position.step}")  # fmt: skip
            return recovered
        except CorruptCheckpoint as error:
            _log.warning("%s", error)
            if _is_mended(spare, folder / "checkpoints" / plan.checkpoint.name, notes):
                continue
            notes.append(str(error))
            broken[plan.checkpoint.name] = str(error)
        except DamagedEntry as damage:
            _log.warning("%s", damage.error)
            is_mended = _is_mended(spare, damage.link.segment.path, notes)
            if is_mended or (not is_indexed and damage.error.tensor is None):  # the index may have a description, no tensors
                is_indexed = True
                history = build_history(open_for_reading(folder).segments, limits)
                continue
            notes.append(str(damage.error))
            good = _last_sound_boundary(plan.links) if damage.link is plan.links[-1] else damage.link.sequence - 1
            ordinal = damage.link.segment.row.ordinal
            last_good[ordinal] = min(good, last_good.get(ordinal, good))
    raise RecoveryError(f"{folder}: too much is damaged to recover; see `tranlogs verify`")


class DamagedEntry(Exception):
    """An entry of the plan cannot be read, or what another rank has of it."""

    def __init__(self, link: Link, error: CorruptRecord) -> None:
        self.link, self.error = link, error


def _is_mended(spare: Spare | None, path: Path, notes: list[str]) -> bool:
    """Whether a sound copy has taken the place of a damaged segment or checkpoint; it is then said in the notes."""
    told = mended(spare, [path])
    notes += told
    return bool(told)


def _last_sound_boundary(links: Sequence[Link]) -> int:
    """Number of the newest boundary in the landing's segment, before the landing, whose arrays are sound.

    A boundary refers to the arrays of earlier ones where they did not change: what is damaged for the last of them may be
    for a thousand, and to find that out one by one would cost a replay each. 0 if there is none.
    """
    landing, sound, good = links[-1].segment, {}, 0
    try:
        with SegmentReader(landing.path, landing.locations) as reader:
            for link in links[:-1]:
                if link.segment is not landing:
                    continue
                entry = reader.decode(link.location)
                arrays = entry.arrays()
                for row in arrays:
                    if row[1] not in sound:
                        sound[row[1]] = reader.is_sound(row)
                if link.kind == EntryKind.BOUNDARY and all(sound[row[1]] for row in arrays):
                    good = link.sequence
    except (CorruptRecord, OSError):
        pass
    return good


def carry_out(folder: Path, plan: Plan, state: Recoverable, notes: list[str], progress: Progress | None,
              past: tuple[dict[str, Any], Noted] | None = None) -> Recovered:  # fmt: skip
    """Load the plan's checkpoint and redo its entries; `folder` is the journal's.

    `past` goes with a checkpoint of another journal: what this one holds of before, to be set with the landing's body, and
    what was noted since.

    Raises:
        CorruptCheckpoint, DamagedEntry: bytes are damaged; the state may be half set, and is set again by another plan.
    """
    start = time.monotonic()
    with Checkpoint((plan.source or folder) / "checkpoints" / plan.checkpoint.name) as checkpoint:
        if checkpoint.chain != int(plan.checkpoint.chain, 16) or checkpoint.sequence != plan.checkpoint.sequence:
            raise CorruptCheckpoint(checkpoint.folder, "it is not the checkpoint that the catalog names")
        differences = state.differences(checkpoint)
        if differences:
            raise StateMismatch(folder.parent, differences)
        state.restore(checkpoint)
        hit("recovery.restored")
        loaded = time.monotonic()
        body: dict[str, Any] | None = None
        parts: dict[str, bytes] = {}
        divergence: Divergence | None = None
        before, scalars = past or ({}, [])
        scalars = list(scalars)
        log_bytes = 0
        replayed, total = 0, sum(link.kind == EntryKind.STEP for link in plan.links)
        for links, entries, noted in chunks(plan.links):
            diverged = _redo(state, entries, links, _ticker(progress, replayed, total))
            replayed += sum(entry.kind == EntryKind.STEP for entry in entries)
            scalars += noted
            divergence = divergence or diverged
        if plan.links:
            body, parts = _landing(state, plan.links[-1])
            log_bytes = sum(link.location.head.payload_bytes for link in plan.links)
            state.set_auxiliary({**body, **before})
        hit("recovery.replayed")
    end = time.monotonic()
    return Recovered(plan, plan.position, body or {}, replayed, loaded - start, end - loaded, divergence,
                     scalars, [*plan.notes, *notes], log_bytes, parts=parts)  # fmt: skip


def _redo(state: Recoverable, entries: list[Entry], links: Sequence[Link], tick: Callable[[int], Any]) -> Divergence | None:
    if not entries:
        return None
    try:
        return state.redo(entries, tick)
    except CorruptRecord as error:
        by_step = [link for link in links if link.kind != EntryKind.BOUNDARY and link.step == error.step]
        raise DamagedEntry(by_step[0] if by_step else links[0], error) from None


def _ticker(progress: Progress | None, base: int, total: int) -> Callable[[int], None]:
    def tick(done: int) -> None:
        if progress is not None:
            progress("replay", min(base + done, total), total)

    return tick


def _landing(state: Recoverable, link: Link) -> tuple[Any, dict[str, bytes]]:
    """The body of the boundary on which a plan lands, and its parts."""
    try:
        with SegmentReader(link.segment.path, link.segment.locations) as reader:
            entry = reader.decode(link.location)
            return state.decode(entry), entry.parts()
    except CorruptRecord as error:
        raise DamagedEntry(link, error) from None
    except OSError as error:
        raise DamagedEntry(link, CorruptRecord(link.segment.path, str(error), step=link.step)) from None


def chunks(links: Sequence[Link]) -> Iterator[tuple[list[Link], list[Entry], Noted]]:
    """Decode records in order, so many at a time, with their files open meanwhile.

    Yields:
        The links of steps and after-images, their records, and what the boundaries between them have noted.

    Raises:
        DamagedEntry: the description of a record is damaged.
    """
    at = 0
    readers: dict[int, SegmentReader] = {}
    with ExitStack() as stack:
        while at < len(links):
            noted: Noted = []
            chunk, entries, frames = [], [], 0
            used: set[int] = set()
            while at < len(links) and frames < _CHUNK_FRAMES and len(used) <= _CHUNK_SEGMENTS:
                link = links[at]
                location, segment = link
                ordinal = segment.row.ordinal
                try:
                    if ordinal not in readers:
                        reader = SegmentReader(segment.path, segment.locations, reads_ahead=True)
                        readers[ordinal] = stack.enter_context(reader)
                    used.add(ordinal)
                    if location.head.kind == EntryKind.BOUNDARY:
                        noted.append((location.head.step, readers[ordinal].scalars(location)))
                    else:
                        entry = readers[ordinal].decode(location)
                        chunk.append(link)
                        entries.append(entry)
                        frames += len(entry.layout) + 4
                except CorruptRecord as error:
                    raise DamagedEntry(link, error) from None
                except OSError as error:
                    raise DamagedEntry(link, CorruptRecord(segment.path, str(error), step=link.step)) from None
                at += 1
            yield chunk, entries, noted
            for ordinal in [o for o in readers if at >= len(links) or o != links[at].segment.row.ordinal]:
                readers.pop(ordinal).close()


__all__ = ["Facts", "History", "Progress", "Recovered", "open_for_reading", "recover", "scan_segment"]
