"""Plans of one rank: how it gets from a checkpoint to the boundary on which the group agreed, by the journals it can read."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...base.errors import CorruptCheckpoint
from ...catalog import CheckpointRow
from ...checkpoints import Checkpoint
from ...log.record_format import Position
from ..decoding import DamagedEntry, decode_chunks
from ..history import Link
from ..recover import EarlierNotes
from ..recovery_plan import RecoveryPlan, has_later_boundary
from .decide import BaseCheckpoint, GroupTarget
from .exchange import Known, OwnJournal
from .journals import GenerationLog, enumerate_boundaries
from .shards import GradientShards


class RankPlanner:
    """Planner of the recovery of one rank to a boundary of the group.

    Args:
        own: the rank's journal.
        known: what the rank knows of all journals.
        folders: where to read each rank's journal.
        target: the generation that is recovered, and the boundary in it.
    """

    def __init__(self, own: OwnJournal, known: Known, folders: Mapping[int, Path], target: GroupTarget) -> None:
        self._own, self._known, self.folders = own, known, folders
        self._generation, self._agreement = target.generation, target.agreement

    def read_log(self, rank: int) -> GenerationLog:
        """Return the generation's part in a rank's journal. Those of other ranks are read anew: their copies may grow."""
        first_timeline, logs = self._generation.first_timeline, self._known.logs if rank == self._own.rank else []
        own = [log for log in logs if log.first_timeline == first_timeline and not log.is_empty]
        return own[0] if own else GenerationLog.read(self.folders[rank], first_timeline, self._known.unused_timelines)

    def open_shards(self, donor: int) -> GradientShards:
        """Return the journals that hold the gradient shards which that of a rank does not hold."""
        lost = (donor, *self._agreement.lost)
        folders = {one.rank: self.folders[one.rank] for one in self._generation.summaries if one.rank not in lost}
        return GradientShards(folders, self._generation.first_timeline, self._known.unused_timelines)

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
        """Plan the recovery of a state by the journal that rank `donor` wrote, from a checkpoint.

        Raises:
            CorruptCheckpoint: the catalog does not list the checkpoint any more.
        """
        row = self.read_row(base)
        source = None if base.rank == donor else self.folders[base.rank]
        links = self._select_links(log, donor, base, row)
        timeline = log.facts.timeline
        position = Position(row.sequence, row.step, int(row.chain, 16), timeline)
        if links:
            head = links[-1].location.head
            position = Position(head.sequence, head.step, head.digest, timeline)
        has_later = has_later_boundary(log.history, log.checkpoints, position)
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

        The position lies after all entries of the journal, and its chain is random: no entry precedes it.
        """
        facts = self._known.logs[0].facts
        last = [row.sequence for row in facts.checkpoints]
        last += [location.head.sequence for segment in facts.segments for location in segment.locations[-1:]]
        return Position(max(last, default=0) + 1, step, secrets.randbits(64), 0)

    def read_earlier_notes(self, log: GenerationLog, plan: RecoveryPlan) -> EarlierNotes:
        """Return what the loop noted on this rank before the entries of a plan that starts at another rank's checkpoint."""
        for row in reversed(log.checkpoints):
            links = log.history.after(row.sequence, int(row.chain, 16))
            end = next((i for i, link in enumerate(links) if link.sequence == plan.links[0].sequence), None)
            if end is None:
                continue
            with (
                suppress(CorruptCheckpoint, DamagedEntry),
                Checkpoint(self._own.folder / "checkpoints" / row.name) as checkpoint,
            ):
                body = checkpoint.meta()["boundary"]
                scalars = [one for chunk in decode_chunks(links[:end]) for one in chunk.scalars]
                return {key: body[key] for key in ("scalars",) if key in body}, scalars
        return {}, []

    def _select_links(self, log: GenerationLog, donor: int, base: BaseCheckpoint, row: CheckpointRow) -> list[Link]:
        """Return the donor's entries from the checkpoint to the target."""
        runs, target, number = log.history.runs, self._agreement.step, self._agreement.boundary_number
        if base.rank == donor:
            is_reached = number in (0, base.ref.boundary_number)
            if row.step == target and (is_reached or self._generation.summaries[donor].count_boundaries(target) is None):
                return []
            links = log.history.after(row.sequence, int(row.chain, 16))
        else:
            links = _select_from_step(runs, row.step, target)
        for run in runs:
            found = [link for _, link in enumerate_boundaries(run) if link.step == target]
            if len(found) >= max(number, 1) and run[-1].location.head.digest == links[-1].location.head.digest:
                last = found[max(number, 1) - 1]
                return links[: next(i for i, link in enumerate(links) if link.sequence == last.sequence) + 1]
        raise AssertionError(f"the agreement on step {target} does not fit the log of rank {donor}")


def _select_from_step(runs: Sequence[list[Link]], start: int, target: int) -> list[Link]:
    """Return the entries from the first boundary at a step on, in the run that leads to the target; [] if there is none.

    The state has the step of that boundary already.
    """
    for run in runs:
        first = 0 if start == 0 and run[0].sequence == 1 else None
        if first is None:
            first = next((i for i, link in enumerate_boundaries(run) if link.step == start), None)
        if first is not None and run[-1].step >= target:
            return [run[first].without_step(), *run[first + 1 :]] if run[first].step == start else run[first:]
    return []
