"""Execution of a recovery: read the facts, plan, restore, redo and compare. Damage met on the way leads to a new plan.

Records are decoded in order and with bounded memory. What is damaged raises DamagedRecord, which names the record.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..base.errors import CorruptCheckpoint, CorruptRecord, RecoveryError, StateMismatch
from ..base.failpoints import hit
from ..base.notes import Note
from ..base.quantities import count
from ..catalog.rows import is_on_lineage
from ..checkpoints import Checkpoint
from ..log.reader import Record, SegmentReader
from ..log.record_body import WHOLE
from ..log.record_format import Position, RecordKind
from .history import LastUnit, Link, build_history, find_last_unit
from .journal_facts import Facts, read_facts, read_repaired_facts, replace_damaged
from .recovery_plan import NEWEST, RecoveryPlan, Target, has_later_boundary, plan_recovery
from .state_protocol import Divergence, Recoverable, ReplacementSource

_log = logging.getLogger(__name__)

_CHUNK_FRAMES = 100_000  # descriptions in memory at a time
_CHUNK_SEGMENTS = 32
_ATTEMPTS_MAX = 1000  # each attempt that meets damage rules out a checkpoint or a part of the log

Progress = Callable[[str, int, int], None]  # what is being done, how much is done, and the total
StepScalars = list[tuple[int, dict[str, float]]]  # a step, and the scalars that the loop noted at its boundary
EarlierNotes = tuple[dict[str, Any], StepScalars]  # parts of a boundary's body, and scalars


@dataclass(slots=True)
class Recovered:
    """The outcome of `recover`.

    Attributes:
        body: the body of the boundary at that position; empty if nothing was redone.
        divergence: the first step that differs from what the run recorded; None if none does.
        scalars: what the loop noted at the boundaries that were passed.
        log_bytes: the bytes of the log that was redone.
        parts: the parts of the boundary's body, as they lie in the log.
        last_unit: the unit behind `position`, which training is to compute again; None if it is not to compute any.
        steps_lost: committed steps that no readable record leads to. Steps that only training can compute again are not lost.
        has_losses: True if a checkpoint or a whole segment of the run cannot be read.
    """

    plan: RecoveryPlan
    position: Position
    body: dict[str, Any] = field(default_factory=dict)
    replayed: int = 0
    seconds_load: float = 0.0
    seconds_replay: float = 0.0
    divergence: Divergence | None = None
    scalars: StepScalars = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    log_bytes: int = 0
    damaged: tuple[str, ...] = ()
    parts: dict[str, bytes] = field(default_factory=dict)
    last_unit: LastUnit | None = None
    steps_lost: int = 0
    has_losses: bool = False

    @property
    def end(self) -> Position:
        """The position after which the next record is written: the newest boundary, also if recovery ended one unit before."""
        return self.position if self.last_unit is None else self.last_unit.end

    def require_position(self, position: Position) -> None:
        """Check that recovery ended at a position. Its timeline is not compared.

        Raises:
            RecoveryError: recovery ended at another position, because the log has changed since the position was read.
        """
        end = self.position
        if (end.sequence, end.chain) != (position.sequence, position.chain):
            raise RecoveryError(f"the log has changed: it leads to step {end.step}, expected step {position.step}; try again")


def recover(
    folder: Path,
    state: Recoverable,
    target: Target = NEWEST,
    *,
    progress: Progress | None = None,
    spare: ReplacementSource | None = None,
) -> Recovered | None:
    """Bring `state` to the target. Return None if the run holds nothing yet. Damaged files are replaced by copies of `spare`.

    Raises:
        StateMismatch: `state` does not fit the run. Nothing was changed.
        RecoveryError: there is no sound checkpoint, or the step of the target is not covered.
    """
    with paused_collection():
        facts = read_repaired_facts(folder, spare)
        if facts.is_empty:
            return None
        planner = _DamagePlanner(folder, facts, spare, target.checkpoint)
    for _ in range(_ATTEMPTS_MAX):
        plan = planner.plan(target)
        unit: LastUnit | None = None
        if plan.recomputed:
            plan, unit = planner.with_comparison(plan) if target.compares else (plan, None)
        elif target.before_last_unit and (unit := planner.find_last_unit(plan)) is not None:
            plan, unit = planner.shorten(plan, unit)
        try:
            recovered = execute_plan(folder, plan, state, planner.notes, progress)
            if unit is not None:
                require_sound(unit.links)
                recovered.last_unit = unit
        except CorruptCheckpoint as error:
            planner.exclude_checkpoint(plan, error)
            continue
        except DamagedRecord as damage:
            planner.exclude_record((*plan.links, *(unit.links if unit is not None else ())), damage)
            continue
        recovered.damaged = tuple(planner.broken)
        recovered.has_losses = bool(planner.broken or facts.lost_paths)
        committed, end = max(facts.rows.watermarks.committed, planner.newest_step), max(recovered.end.step, plan.end.step)
        if plan.recomputed and not target.compares:
            recovered.notes.append(
                Note("no-tensors", f"the log has no tensors of {plan.recomputed_steps}: training computes them again")
            )
        if target.is_newest and end < committed:
            recovered.steps_lost = committed - end
            again = f"{count(committed - end, 'step')} {'has' if committed - end == 1 else 'have'} to be trained again"
            text = f"step {committed} had been committed, but the readable log ends at step {end}: {again}"
            recovered.notes.append(Note("steps-lost", text))
        return recovered
    raise RecoveryError(f"{folder}: too much is damaged to recover; run `tranlogs verify` to list the damage")


def require_covered(folder: Path, step: int) -> None:
    """Check that checkpoints and log lead to a step, without restoring anything.

    Raises:
        RecoveryError: there is no checkpoint, or `step` is not covered.
    """
    _DamagePlanner(folder, read_facts(folder), None, None).plan(Target(step))


class _DamagePlanner:
    """Planner of the attempts of one recovery. Damage that an attempt meets is replaced by a sound copy, or ruled out.

    Attributes:
        newest_step: the newest step that a plan led to before damage was met; 0 if none was met.
    """

    def __init__(self, folder: Path, facts: Facts, spare: ReplacementSource | None, checkpoint: str | None) -> None:
        self._folder, self._facts, self._spare = folder, facts, spare
        self._rows = [row for row in facts.checkpoints if checkpoint in (None, row.name)]
        self._limits = facts.rows.limits
        self._history = facts.build_history()
        self._last_good: dict[int, int] = {}  # by ordinal of a damaged segment: the last sequence number before the damage
        self._reported: set[str] = set()
        self.broken: list[str] = []
        self.newest_step = 0
        self.notes = list(facts.notes)

    def plan(self, target: Target) -> RecoveryPlan:
        """Plan the next attempt.

        Raises:
            RecoveryError: there is no sound checkpoint, or `step` is not covered.
        """
        try:
            known = self._rows, self._history, self._limits
            return plan_recovery(*known, target, broken=self.broken, last_good=self._last_good)
        except RecoveryError as error:
            raise RecoveryError(f"{self._folder}: {error}") from None

    def find_last_unit(self, plan: RecoveryPlan) -> LastUnit | None:
        """Return the newest unit with a step that a plan leads to; None if the log does not hold it.

        None, too, if the newest timeline holds nothing yet. A script may have begun it by what it changes before its loop, and
        would supersede another unit at each start.
        """
        if plan.position.sequence in self._limits.values():
            return None
        return find_last_unit(self._history, self._rows, plan.position)

    def shorten(self, plan: RecoveryPlan, unit: LastUnit) -> tuple[RecoveryPlan, LastUnit | None]:
        """Return a plan that ends before a unit, with the unit; the given plan and None if no checkpoint leads there."""
        try:
            shorter = self.plan(Target(sequence=unit.start.sequence))
        except RecoveryError:
            return plan, None
        if shorter.position != unit.start:
            return plan, None
        return replace(shorter, has_later=plan.has_later, notes=plan.notes), unit

    def with_comparison(self, plan: RecoveryPlan) -> tuple[RecoveryPlan, LastUnit]:
        """Return a plan after which training computes steps again, and the records with which they are compared."""
        rows = [row for row in self._rows if is_on_lineage(row, self._limits)]
        has_later = has_later_boundary(self._history, rows, plan.end)
        return replace(plan, has_later=has_later), LastUnit(plan.position, plan.end, tuple(plan.recomputed))

    def exclude_checkpoint(self, plan: RecoveryPlan, error: CorruptCheckpoint) -> None:
        """Replace the damaged checkpoint of a plan, or exclude it from further plans."""
        self._warn(str(error))
        self.newest_step = max(self.newest_step, plan.position.step)
        if not self._replace(self._folder / "checkpoints" / plan.checkpoint.name):
            self.notes.append(str(error))
            self.broken.append(plan.checkpoint.name)

    def exclude_record(self, links: Sequence[Link], damage: DamagedRecord) -> None:
        """Replace the segment of a damaged record, one of `links`, or exclude it and what follows from further plans."""
        self._warn(str(damage.error))
        self.newest_step = max(self.newest_step, links[-1].step)
        if self._replace(damage.link.segment.path):
            self._history = build_history(read_facts(self._folder).segments, self._limits)
            return
        self.notes.append(str(damage.error))
        good = find_last_sound_boundary(links) if damage.link.sequence == links[-1].sequence else damage.link.sequence - 1
        ordinal = damage.link.segment.row.ordinal
        self._last_good[ordinal] = min(good, self._last_good.get(ordinal, good))

    def _warn(self, text: str) -> None:
        """Warn of damage, once."""
        if text not in self._reported:
            self._reported.add(text)
            _log.warning("%s", text)

    def _replace(self, path: Path) -> bool:
        """Replace a damaged segment or checkpoint by a sound copy and add a note. Return True if there was a copy."""
        replaced = replace_damaged(self._spare, [path])
        self.notes += replaced
        return bool(replaced)


def execute_plan(
    folder: Path,
    plan: RecoveryPlan,
    state: Recoverable,
    notes: list[str],
    progress: Progress | None,
    earlier: EarlierNotes | None = None,
) -> Recovered:
    """Load the checkpoint of a plan and redo its records.

    Args:
        earlier: with a checkpoint of another journal, what this journal noted before the plan's records. It is set together
            with the body of the last boundary.

    Raises:
        CorruptCheckpoint, DamagedRecord: the checkpoint or a record is damaged. The state may be set in part; another plan
            sets it again.
    """
    start = time.monotonic()
    body: dict[str, Any] = {}
    parts: dict[str, bytes] = {}
    before, scalars_before = earlier or ({}, [])
    links = tuple(plan.links)  # of a Run, each pass over the links would make them again
    with open_planned_checkpoint(folder, plan) as checkpoint:
        differences = state.differences(checkpoint)
        if differences:
            raise StateMismatch(folder.parent, differences)
        state.restore(checkpoint)
        hit("recovery.restored")
        loaded = time.monotonic()
        replayed, divergence, scalars = _redo_records(state, links, progress)
        if links:
            body, parts = read_boundary(state, links[-1])
            state.set_auxiliary({**body, **before})
        hit("recovery.replayed")
    return Recovered(
        plan,
        plan.position,
        body,
        replayed,
        seconds_load=loaded - start,
        seconds_replay=time.monotonic() - loaded,
        divergence=divergence,
        scalars=[*scalars_before, *scalars],
        notes=[*plan.notes, *notes],
        log_bytes=sum(link.location.head.payload_bytes for link in links),
        parts=parts,
    )


def _redo_records(
    state: Recoverable, links: Sequence[Link], progress: Progress | None
) -> tuple[int, Divergence | None, StepScalars]:
    """Redo the records of a plan, a bounded number at a time. Return how many steps, the first that differs, and scalars."""
    steps, divergence, scalars = 0, None, StepScalars()
    total = sum(link.kind.is_step for link in links)

    def tick(done: int) -> None:
        if progress is not None:
            progress("replay", min(steps + done, total), total)

    for chunk in decode_chunks(links):
        try:
            found = state.redo(chunk.records, tick) if chunk.records else None
        except CorruptRecord as error:
            by_step = [link for link in chunk.links if link.step == error.step]
            raise DamagedRecord(by_step[0] if by_step else chunk.links[0], error) from None
        steps += sum(record.kind.is_step for record in chunk.records)
        scalars += chunk.scalars
        divergence = divergence or found
    return steps, divergence, scalars


@contextmanager
def open_planned_checkpoint(folder: Path, plan: RecoveryPlan) -> Iterator[Checkpoint]:
    """Open the checkpoint of a plan of a journal.

    Raises:
        CorruptCheckpoint: it is damaged, or another one than the catalog lists.
    """
    with Checkpoint((plan.source or folder) / "checkpoints" / plan.checkpoint.name) as checkpoint:
        if checkpoint.chain != int(plan.checkpoint.chain, 16) or checkpoint.sequence != plan.checkpoint.sequence:
            raise CorruptCheckpoint(checkpoint.folder, "it is not the checkpoint that the catalog lists under this name")
        yield checkpoint


# Decoding.


class DamagedRecord(Exception):
    """A record of the plan cannot be read, or another rank's shard of it cannot.

    Attributes:
        is_boundary: True if the damage is in the auxiliary state of a boundary, so that a replay can pass it.
    """

    def __init__(self, link: Link, error: CorruptRecord, *, is_boundary: bool = False) -> None:
        self.link, self.error, self.is_boundary = link, error, is_boundary


@dataclass(slots=True)
class Chunk:
    """Consecutive records that were decoded together.

    Attributes:
        links: the links of steps and after-images.
        scalars: the scalars of the boundaries between them.
    """

    links: list[Link] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    scalars: StepScalars = field(default_factory=list)


def decode_chunks(links: Sequence[Link]) -> Iterator[Chunk]:
    """Decode records in order, a bounded number at a time. Their files stay open until the next chunk is decoded."""
    at = 0
    readers: dict[int, SegmentReader] = {}
    with ExitStack() as stack:
        while at < len(links):
            chunk, frames, used = Chunk(), 0, set[int]()
            with paused_collection():
                while at < len(links) and frames < _CHUNK_FRAMES and len(used) <= _CHUNK_SEGMENTS:
                    link = links[at]
                    ordinal = link.segment.row.ordinal
                    try:
                        if ordinal not in readers:
                            reader = SegmentReader(link.segment.path, link.segment.locations, reads_ahead=True)
                            readers[ordinal] = stack.enter_context(reader)
                        frames += _decode(link, readers[ordinal], chunk)
                    except (CorruptRecord, OSError) as error:
                        raise make_damaged(link, error) from None
                    used.add(ordinal)
                    at += 1
            yield chunk
            for ordinal in [o for o in readers if at >= len(links) or o != links[at].segment.row.ordinal]:
                readers.pop(ordinal).close()


def _decode(link: Link, reader: SegmentReader, chunk: Chunk) -> int:
    """Decode a record and add it to a chunk; return the size of its description in frames."""
    if link.kind == RecordKind.BOUNDARY:
        chunk.scalars.append((link.step, reader.scalars(link.location)))
        return 0
    record = reader.decode(link.location)
    if link.kind.is_boundary:
        chunk.scalars.append((link.step, record.scalars))
    chunk.links.append(link)
    chunk.records.append(record)
    return len(record.layout) + 4


def make_damaged(link: Link, error: CorruptRecord | OSError, *, is_boundary: bool = False) -> DamagedRecord:
    """Return the error for a record that cannot be read."""
    if isinstance(error, OSError):
        error = CorruptRecord(link.segment.path, str(error), step=link.step)
    return DamagedRecord(link, error, is_boundary=is_boundary or link.kind == RecordKind.BOUNDARY)


def read_boundary(state: Recoverable, link: Link) -> tuple[Any, dict[str, bytes]]:
    """Return the body of the boundary at which a plan ends, and the parts of that body."""
    try:
        with SegmentReader(link.segment.path, link.segment.locations) as reader:
            record = reader.decode(link.location)
            return state.decode_boundary(record), {name: blob for name, blob in record.parts().items() if name != WHOLE}
    except (CorruptRecord, OSError) as error:
        raise make_damaged(link, error, is_boundary=True) from None


def require_sound(links: Sequence[Link]) -> None:
    """Read records, and compare all their checksums."""
    for link in links:
        try:
            with SegmentReader(link.segment.path, link.segment.locations) as reader:
                for damage in reader.decode(link.location).find_damage():
                    raise damage
        except (CorruptRecord, OSError) as error:
            raise make_damaged(link, error) from None


def find_last_sound_boundary(links: Sequence[Link]) -> int:
    """Return the number of the newest boundary with sound arrays that lies before the last one, in its segment.

    If there is none, return the number of the record before the first link: what lies before was not looked at.

    A boundary refers to the arrays of earlier boundaries where these did not change. Damage to the arrays of the last boundary
    may thus be damage to a thousand others. To find that out one by one would cost a replay each.
    """
    segment, good = links[-1].segment, links[0].sequence - 1
    try:
        with SegmentReader(segment.path, segment.locations) as reader:
            for link in links[:-1]:
                if link.segment is not segment:
                    continue
                arrays = reader.decode(link.location).arrays()
                if link.kind.is_boundary and all(reader.is_sound(row) for _, row in arrays):
                    good = link.sequence
    except (CorruptRecord, OSError):
        pass
    return good


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector, for a block that makes many objects which live on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
