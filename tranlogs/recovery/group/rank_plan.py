"""How a rank comes from a checkpoint to the boundary on which all agreed: plans over the journals that it can read."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...base.errors import CorruptCheckpoint
from ...catalog import CheckpointRow
from ...checkpoints import Checkpoint
from ...log.record import Position
from ..history import Link
from ..plan import Plan, is_later
from ..recover import DamagedEntry, Noted, chunks
from .agreement import Base
from .generations import Settled
from .journal_summary import LocalLog, boundaries


class Routes:
    """See the module.

    Args:
        folder: of this rank's journal.
        rank: of this process.
        logs: what its journal holds, by era.
        folders: where to read each rank's journal.
        settled: where all land, and in which era.
        ignored: timelines that do not count.
    """

    def __init__(self, folder: Path, rank: int, logs: Sequence[LocalLog], folders: Mapping[int, Path],
                 settled: Settled, ignored: Collection[int] = ()) -> None:  # fmt: skip
        self._folder, self._rank, self._logs, self._folders = folder, rank, logs, folders
        self._ignored = ignored
        self._era, self._agreement = settled.era, settled.agreement

    def folder_of(self, rank: int) -> Path:
        """Where to read a rank's journal."""
        return self._folders[rank]

    def log_of(self, rank: int) -> LocalLog:
        """What a journal holds of the era; copies of others' grow while ranks recover, so they are read anew."""
        own = [log for log in self._logs if rank == self._rank and log.since == self._era.since and not log.is_empty]
        return own[0] if own else LocalLog.read(self.folder_of(rank), self._era.since, self._ignored)

    def row(self, base: Base) -> CheckpointRow:
        """What the catalog of the base's owner says of it."""
        for row in self.log_of(base.rank).checkpoints:
            if row.name == base.anchor.name:
                return row
        raise CorruptCheckpoint(self.folder_of(base.rank) / "checkpoints" / base.anchor.name, "it is not there")

    def plan(self, log: LocalLog, donor: int, base: Base) -> Plan:
        """How the state comes from the journal of `donor` (`log`)."""
        row = self.row(base)
        source = None if base.rank == donor else self.folder_of(base.rank)
        links = self._links(log, donor, base, row)
        timeline = log.facts.timeline
        position = Position(row.sequence, row.step, int(row.chain, 16), timeline)
        if links:
            head = links[-1].location.head
            position = Position(head.sequence, head.step, head.digest, timeline)
        notes = () if source is None else (f"weights and optimizer state were taken from rank {base.rank}'s checkpoint of step "
                                           f"{row.step}",)  # fmt: skip
        return Plan(row, tuple(links), position, is_later(log.history, log.checkpoints, position), notes, source)

    def beginning(self, step: int) -> Position:
        """Where this rank's journal goes on if it does not hold what was redone: behind all that it has, chained to nothing."""
        facts = self._logs[0].facts
        last = [row.sequence for row in facts.checkpoints]
        last += [location.head.sequence for segment in facts.segments for location in segment.locations[-1:]]
        return Position(max(last, default=0) + 1, step, secrets.randbits(64), 0)

    def past(self, log: LocalLog, plan: Plan) -> tuple[dict[str, Any], Noted]:
        """What the loop had noted on this rank before the plan's entries: another rank's checkpoint does not know it."""
        for row in reversed(log.checkpoints):
            links = log.history.after(row.sequence, int(row.chain, 16))
            end = next((i for i, link in enumerate(links) if link is plan.links[0]), None)
            if end is None:
                continue
            with suppress(CorruptCheckpoint, DamagedEntry), Checkpoint(self._folder / "checkpoints" / row.name) as checkpoint:
                body = checkpoint.meta()["boundary"]
                noted = [one for _, _, some in chunks(links[:end]) for one in some]
                return {key: body[key] for key in ("scalars",) if key in body}, noted
        return {}, []

    def _links(self, log: LocalLog, donor: int, base: Base, row: CheckpointRow) -> list[Link]:
        """The donor's own entries between the base and the landing."""
        runs, (target, nth) = log.history.runs, self._agreement.landing(donor)
        if base.rank == donor:
            if row.step == target and (nth in (0, base.anchor.nth) or self._era.holdings[donor].count(target) is None):
                return []
            links = log.history.after(row.sequence, int(row.chain, 16))
        else:
            links = _from_step(runs, row.step, target)
        for run in runs:
            landings = [link for _, link in boundaries(run) if link.step == target]
            if len(landings) >= max(nth, 1) and run[-1] is links[-1]:
                landing = landings[max(nth, 1) - 1]
                return links[: next(i for i, link in enumerate(links) if link is landing) + 1]
        raise AssertionError(f"the agreement on step {target} does not fit the log of rank {donor}")


def _from_step(runs: Sequence[list[Link]], start: int, target: int) -> list[Link]:
    """The entries from the first boundary at a step on, in the run that leads to the target."""
    for run in runs:
        first = 0 if start == 0 and run[0].sequence == 1 else None
        if first is None:
            first = next((i for i, link in boundaries(run) if link.step == start), None)
        if first is not None and run[-1].step >= target:
            return run[first:]
    return []
