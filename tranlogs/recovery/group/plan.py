"""Plans of one rank: how it gets from a checkpoint to the boundary on which the group agreed, by the journals it can read.

The group also chooses what all ranks compute again: the newest unit, or the steps without tensors that they all have recorded.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...base.errors import CorruptCheckpoint, CorruptRecord, RecoveryError
from ...catalog import CheckpointRow
from ...checkpoints import Checkpoint
from ...log.reader import SegmentReader
from ...log.record_format import Position, RecordKind
from ..history import PASSES, LastUnit, Link, Run, find_ends, find_last_unit
from ..recover import DamagedRecord, EarlierNotes, Recovered, decode_chunks, require_sound
from ..recovery_plan import RecoveryPlan, has_later_boundary, position_after
from .decide import BaseCheckpoint, Damage, Generation, GroupTarget, choose_target
from .exchange import Known, OwnJournal, Transport, gather, message
from .journals import GenerationLog, enumerate_boundaries, read_generations, select_generation
from .shards import GradientShards

FindObstacle = Callable[[Recovered], str]  # why training cannot compute again the unit after a recovery; "" if it can
_NO_UNIT = "the log does not hold the newest one with a step"
_KINDS = {RecordKind.STEP: "s", RecordKind.BOUNDARY: "b", RecordKind.UNIT: "sb"}  # After-images are a rank's own.


class RankPlanner:
    """Planner of the recovery of one rank to a boundary of the group."""

    def __init__(self, own: OwnJournal, known: Known, folders: Mapping[int, Path], target: GroupTarget) -> None:
        self._own, self._known, self.folders = own, known, folders
        self._generation, self._agreement = target.generation, target.agreement
        self._logs: dict[int, GenerationLog] = {}

    def read_log(self, rank: int) -> GenerationLog:
        """Return the generation's part in a rank's journal. It is read once: copies are made before an attempt is planned."""
        if rank not in self._logs:
            logs = self._known.logs if rank == self._own.rank else self._known.other_logs.get(rank, [])
            logs = logs or read_generations(self.folders[rank], self._known.unused_timelines)
            self._logs[rank] = select_generation(logs, self._generation.first_timeline)
        return self._logs[rank]

    def open_shards(self, donor: int) -> GradientShards:
        """Return the journals that hold the gradient shards which that of a rank does not hold."""
        lost = (donor, *self._agreement.lost)
        folders = {one.rank: self.folders[one.rank] for one in self._generation.summaries if one.rank not in lost}
        return GradientShards(folders, self.read_log)

    def read_row(self, base: BaseCheckpoint) -> CheckpointRow:
        """Return the catalog's row of a checkpoint.

        Raises:
            CorruptCheckpoint: the catalog does not list it any more.
        """
        for row in self.read_log(base.rank).checkpoints:
            if row.name == base.ref.name:
                return row
        raise CorruptCheckpoint(self.folders[base.rank] / "checkpoints" / base.ref.name, "the catalog does not list it")

    def plan(self, log: GenerationLog, donor: int, base: BaseCheckpoint) -> RecoveryPlan:
        """Plan the recovery of a state by the journal that rank `donor` wrote, from a checkpoint."""
        row = self.read_row(base)
        source = None if base.rank == donor else self.folders[base.rank]
        links = self._select_links(log, donor, base, row)
        position = position_after(links, Position(row.sequence, row.step, int(row.chain, 16), log.facts.rows.timeline))
        has_later = has_later_boundary(log.recorded, log.checkpoints, position)
        note = f"loaded weights and optimizer state from rank {base.rank}'s checkpoint of step {row.step}"
        return RecoveryPlan(row, tuple(links), position, has_later, (note,) if source is not None else (), source)

    def count_boundaries(self, log: GenerationLog, position: Position) -> int:
        """Return which of the boundaries at its step a position is, counted from 1; 0 if the log does not hold it."""
        for run in log.history.runs:
            found = [link for _, link in enumerate_boundaries(run) if link.step == position.step]
            for number, link in enumerate(found, start=1):
                if (link.sequence, link.location.head.digest) == (position.sequence, position.chain):
                    return number
        return 0

    def new_position(self, step: int) -> Position:
        """Return where this rank's journal continues if it does not hold what was redone.

        The position lies after all records of the journal, and its chain is random: no record precedes it.
        """
        facts = self._known.logs[0].facts
        last = [row.sequence for row in facts.checkpoints]
        last += [location.head.sequence for segment in facts.segments for location in segment.locations[-1:]]
        return Position(max(last, default=0) + 1, step, secrets.randbits(64), 0)

    def read_earlier_notes(self, log: GenerationLog, plan: RecoveryPlan) -> EarlierNotes:
        """Return what the loop noted on this rank before the records of a plan that starts at another rank's checkpoint."""
        for row in reversed(log.checkpoints):
            links = log.history.after(row)
            end = plan.links[0].sequence - row.sequence - 1  # the numbers in a run have no gap
            if not 0 <= end < len(links):
                continue
            with (
                suppress(CorruptCheckpoint, DamagedRecord),
                Checkpoint(self._own.folder / "checkpoints" / row.name) as checkpoint,
            ):
                body = checkpoint.meta()["boundary"]
                scalars = [one for chunk in decode_chunks(links[:end]) for one in chunk.scalars]
                return {key: body[key] for key in ("scalars",) if key in body}, scalars
        return {}, []

    def _select_links(self, log: GenerationLog, donor: int, base: BaseCheckpoint, row: CheckpointRow) -> Sequence[Link]:
        """Return the donor's records from the checkpoint to the target."""
        runs, target, number = log.history.runs, self._agreement.step, self._agreement.boundary_number
        if base.rank == donor:
            is_reached = number in (0, base.ref.boundary_number)
            if row.step == target and (is_reached or self._generation.summaries[donor].count_boundaries(target) is None):
                return []
            links: Sequence[Link] = log.history.after(row)
        else:
            links = _select_from_step(runs, row.step, target)
        for run in runs:
            found = [link for _, link in enumerate_boundaries(run) if link.step == target]
            if len(found) >= max(number, 1) and run[-1].location.head.digest == links[-1].location.head.digest:
                last = found[max(number, 1) - 1]
                end = last.sequence - links[0].sequence + 1  # the numbers in a run have no gap
                assert 0 < end <= len(links), f"the checkpoint of step {row.step} lies after the target"
                return links[:end]
        raise AssertionError(f"the agreement on step {target} does not fit the log of rank {donor}")


def _select_from_step(runs: Sequence[Run], start: int, target: int) -> Sequence[Link]:
    """Return the records from the first boundary at a step on, in the run that leads to the target; [] if there is none.

    The state has the step of that boundary already.
    """
    for run in runs:
        first = 0 if start == 0 and run[0].sequence == 1 else None
        if first is None:
            first = next((i for i, link in enumerate_boundaries(run) if link.step == start), None)
        if first is not None and run[-1].step >= target:
            return [run[first].without_step(), *run[first + 1 :]] if run[first].step == start else run[first:]
    return []


@message
@dataclass(frozen=True, slots=True)
class UnitSummary:
    """Summary of the newest unit in one rank's log. Ranks exchange summaries to agree on the unit.

    Attributes:
        step: the step of the boundary before the unit.
        number: which of the boundaries at that step, counted from 1; 0 if only a checkpoint of it exists.
        kinds: a letter for each step and each boundary of the unit; "" if the log does not hold the unit.
        covered: the boundaries that are recorded behind the place where the group resumes, if the log has no tensors of the
            steps before them: each has its step, and the number of boundaries between that step and it.
    """

    step: int = 0
    number: int = 0
    kinds: str = ""
    covered: tuple[tuple[int, int], ...] = ()


def find_obstacle(target: GroupTarget, world: int, *, is_resharded: bool) -> str:
    """Return why ranks that resume at a boundary cannot compute the unit before it again; "" if nothing is known."""
    agreement, recorded = target.agreement, target.generation.world
    if recorded != world:
        return f"{recorded} processes recorded the run, now there {'is' if world == 1 else 'are'} {world}"
    if is_resharded:
        return "parameters are sharded in another way now"
    if not target.is_newest:
        return "the run resumes before its last change of the number of processes or of the sharding"
    if agreement.lost:
        return f"the journal of rank {agreement.lost[0]} is lost or damaged"
    return ""


def choose_unit_start(
    generations: Sequence[Generation], target: GroupTarget, units: Sequence[UnitSummary], damage: Damage
) -> tuple[GroupTarget | None, str]:
    """Return the boundary before the unit that all ranks compute again, or None and the reason why there is no such unit."""
    if any(not unit.kinds for unit in units):
        return None, name_rank([_NO_UNIT if not unit.kinds else "" for unit in units])
    if len({(unit.step, unit.kinds) for unit in units}) > 1:
        return None, "the newest units of the ranks do not have the same steps and boundaries"
    no_way = "the checkpoints of the ranks do not lead to its begin"
    try:
        start = choose_target(generations, damage, units[0].step)
    except RecoveryError:
        return None, no_way
    if start is None or start.generation is not target.generation or start.agreement.lost:
        return None, no_way
    if any(unit.number not in (0, start.agreement.boundary_number) for unit in units):
        return None, "the ranks do not have the same boundaries before the newest unit"
    return start, ""


def name_rank(texts: Sequence[str]) -> str:
    """Return the first text that is not empty, with its rank unless it is the same on all ranks."""
    if len(set(texts)) == 1:
        return texts[0]
    return next((f"on rank {rank} {text}" for rank, text in enumerate(texts) if text), "")


class CommonUnit:
    """The choice of the unit, made again in each attempt of a group recovery. All ranks must call `choose` and `is_refused`.

    Args:
        find_obstacle: see `GroupRecovery.recover`; None to compute again only what the log has no tensors of.

    Attributes:
        obstacle: why no unit is computed again; "" if one is, or if the run has no steps.
        end_step: the step up to which the ranks compute again what the log has no tensors of; None if there is none.
    """

    def __init__(self, rank: int, world: int, find_obstacle: FindObstacle | None, transport: Transport) -> None:
        self._rank, self._world, self._find_obstacle, self._transport = rank, world, find_obstacle, transport
        self._refusal = ""  # by a rank, in an earlier attempt
        self._found: tuple[LastUnit, RecoveryPlan] | None = None  # the unit, and the plan that leads to its end
        self._damage: list[str] = []  # of what was recorded without tensors
        self.obstacle = ""
        self.end_step: int | None = None

    def choose(
        self,
        generations: Sequence[Generation],
        target: GroupTarget,
        planner: RankPlanner,
        damage: Damage,
        *,
        is_resharded: bool,
    ) -> GroupTarget | None:
        """Return the boundary before the unit that ends at `target`; None if no unit is computed again."""
        self._found, self._damage, self.end_step, self.obstacle = None, [], None, ""
        obstacle = self._refusal or find_obstacle(target, self._world, is_resharded=is_resharded)
        if obstacle:
            self.obstacle = obstacle if target.agreement.step else ""
            return None
        damaged = {step for rank, step in damage.boundaries if rank == self._rank}
        found, summary, recorded = self._find(target, planner, damaged)
        units = gather(self._transport, summary)
        if (count := count_common([unit.covered for unit in units])) and recorded is not None:
            self._found, self.end_step = _cut(recorded, count), summary.covered[count - 1][0]
            return None
        if self._find_obstacle is None or not target.agreement.step:
            return None
        start, self.obstacle = choose_unit_start(generations, target, units, damage)
        self._found = found if start is not None else None
        return start

    def leave(self, recovered: Recovered) -> str:
        """Leave the unit to training, which computes it again. Return why that is not possible; "" if it is.

        Raises:
            DamagedRecord: the record of the unit is damaged.
        """
        recovered.notes += self._damage
        if self._found is None:
            return ""
        unit, plan = self._found
        if (recovered.position.sequence, recovered.position.chain) != (unit.start.sequence, unit.start.chain):
            return "no checkpoint leads to its begin"
        require_sound(unit.links)
        recovered.last_unit = unit
        recovered.plan = replace(recovered.plan, has_later=plan.has_later, notes=plan.notes)
        return "" if self._find_obstacle is None or unit.is_covered else self._find_obstacle(recovered)

    def is_refused(self, obstacles: Sequence[str]) -> bool:
        """Return True if a rank cannot compute the unit again; the next attempt then ends after the unit."""
        self._refusal = name_rank(obstacles) or self._refusal
        return bool(self._refusal) and self._found is not None

    def _find(
        self, target: GroupTarget, planner: RankPlanner, damaged: Collection[int]
    ) -> tuple[_Unit | None, UnitSummary, _Recorded | None]:
        """Return the newest unit of this rank with the plan that leads to its end, and the summary of the unit.

        The last value is what is recorded behind `target`, if the log has no tensors of these steps, up to the first of the
        `damaged` boundaries, given by their steps.
        """
        base = target.agreement.bases[self._rank]
        assert base is not None, "a rank whose journal is not lost has a checkpoint"
        try:
            log = planner.read_log(self._rank)
            plan = planner.plan(log, self._rank, base)
        except (CorruptCheckpoint, OSError):  # the attempt meets it again, where all ranks learn of it
            return None, UnitSummary(), None
        links = log.recorded.after_position(plan.position)
        recorded = _Recorded(log, plan, links, tuple(find_ends(links))) if len(links) and links[0].covered else None
        covered: list[tuple[int, int]] = []
        try:
            ends = recorded.ends if recorded is not None else ()
            covered.extend(_read_places(itertools.takewhile(lambda link: link.step not in damaged, ends)))
        except (CorruptRecord, OSError) as error:
            self._damage = [str(error)]
        unit = find_last_unit(log.history, log.checkpoints, plan.position)
        if unit is None:
            return None, UnitSummary(covered=tuple(covered)), recorded
        kinds = "".join(_KINDS.get(link.kind, "") for link in unit.links)
        number = planner.count_boundaries(log, unit.start)
        return (unit, plan), UnitSummary(unit.start.step, number, kinds, tuple(covered)), recorded


_Unit = tuple[LastUnit, RecoveryPlan]  # a unit, and the plan that leads to its end


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What a rank has recorded of steps without tensors, behind the end of a plan; `ends` are the boundaries that count."""

    log: GenerationLog
    plan: RecoveryPlan
    links: Run
    ends: tuple[Link, ...]


def count_common(covered: Sequence[Sequence[Any]]) -> int:
    """Return how many of the recorded boundaries are the same on all ranks, from the first on."""
    return next((i for i, places in enumerate(zip(*covered, strict=False)) if len(set(places)) > 1), min(map(len, covered)))


def _read_places(ends: Iterable[Link]) -> Iterator[tuple[int, int]]:
    """Yield the step of each boundary, and the number of boundaries between both.

    Raises:
        CorruptRecord, OSError: a record is damaged, or cannot be read. What lies behind it is not compared.
    """
    for path, links in itertools.groupby(ends, key=lambda link: link.segment.path):
        with SegmentReader(path) as reader:
            for link in links:
                yield link.step, reader.decode(link.location).part(PASSES) or 0


def _cut(recorded: _Recorded, count: int) -> _Unit:
    """Return the unit that ends with a recorded boundary, given by its number from 1."""
    start, end = recorded.plan.position, recorded.ends[count - 1]
    links = tuple(recorded.links[: end.sequence - recorded.links[0].sequence + 1])  # the numbers in a run have no gap
    unit = LastUnit(start, position_after(links, start), links)
    has_later = has_later_boundary(recorded.log.recorded, recorded.log.checkpoints, unit.end)
    return unit, replace(recorded.plan, has_later=has_later)
