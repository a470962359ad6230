"""Recovery of a run whose parameters are sharded in another way now: over more or fewer processes, or over another mesh.

To redo a part of the parameters, no other part is needed. So each earlier journal is redone by one of the present processes,
into a state that `restore` builds as the journal's checkpoint describes it. A process that had a journal redoes that one. Then
the processes exchange the results, and each takes what belongs to it. Each log is read once, by one process. No process holds
more than its part of the earlier state and its part of the present one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...catalog import CheckpointRow
from ...log.record import Position
from ..plan import Plan
from ..protocol import Divergence
from ..recover import Recovered
from .decision.generations import Generation
from .group_state import GroupState
from .journal_access import Transport, read_run_id
from .summary.journal_summary import JournalSummary


class Resharding:
    """One process's part in the recovery of a resharded run.

    All processes must make one at the same time: they exchange which journals each of them can read.

    Args:
        rank: the rank of this process.
        world: the number of processes.
        generation: the generation that is recovered.
        folders: where to read each rank's journal.
        transport: connects the processes.
    """

    def __init__(
        self, rank: int, world: int, generation: Generation, folders: Mapping[int, Path], transport: Transport
    ) -> None:
        self._rank, self._transport = rank, transport
        held = [summary for summary in generation.summaries if not summary.is_empty]
        # Without shards each rank had all parameters, and state of its own.
        held = held if generation.is_sharded else held[:world]
        readable = [summary.rank for summary in held if _can_read(rank, summary, folders)]
        readable_by = [answer["readable"] for answer in transport.gather({"readable": readable})]
        self._owners = {summary.rank: _choose_owner(summary.rank, readable_by, world) for summary in held}
        self._parts: dict[int, GroupState] = {}
        self._redone: dict[int, Recovered] = {}

    @property
    def assigned_ranks(self) -> list[int]:
        """The ranks whose journals this process redoes."""
        return [rank for rank, owner in self._owners.items() if owner == self._rank]

    def add(self, rank: int, part: GroupState, recovered: Recovered) -> None:
        """Add the part that was redone from a rank's journal."""
        self._parts[rank], self._redone[rank] = part, recovered

    def assemble(self, state: GroupState, position: Position) -> Recovered:
        """Set this process's state from the parts that all processes have redone. All processes must call it.

        Args:
            state: the state of this process.
            position: where its journal continues.

        Raises:
            StateMismatch: the state does not fit the run.
            UsageError: the redone parts do not make up whole parameters.
        """
        answers = self._transport.gather([[rank, _pack(found)] for rank, found in self._redone.items()])
        found = dict(sorted((rank, _unpack(one)) for packed in answers for rank, one in packed))
        body: dict[str, Any] = state.assemble(self._parts, self._owners, self._rank, self._transport)
        own = found[self._rank if self._rank in found else min(found)]
        diverged = [one.divergence for one in found.values() if one.divergence is not None]
        assembled: Recovered = replace(
            own,
            position=position,
            body=body,
            replayed=max(one.replayed for one in found.values()),
            seconds_load=max(one.seconds_load for one in found.values()),
            seconds_replay=max(one.seconds_replay for one in found.values()),
            divergence=min(diverged, key=lambda one: one.step, default=None),
            notes=[text for one in found.values() for text in one.notes],
        )
        return assembled


def _can_read(rank: int, summary: JournalSummary, folders: Mapping[int, Path]) -> bool:
    """Return True if a process can read a journal: its own, one that it found beside its own, or one on a shared disk."""
    return rank in (summary.rank, summary.sender) or read_run_id(folders[summary.rank]) == summary.run_id


def _choose_owner(rank: int, readable_by: list[list[int]], world: int) -> int:
    """Return the process that redoes a rank's journal: that of the same rank, or else the able processes in turn.

    Args:
        rank: the rank that wrote the journal.
        readable_by: the ranks whose journals each process can read.
        world: the number of processes.
    """
    if rank < world:
        return rank
    able = [process for process, readable in enumerate(readable_by) if rank in readable]
    return able[rank % len(able)]


def _pack(recovered: Recovered) -> dict[str, Any]:
    """Return what a report needs of a recovery, as plain values that can be sent."""
    diverged = recovered.divergence
    return {
        "checkpoint": asdict(recovered.plan.checkpoint),
        "notes": recovered.notes,
        "replayed": recovered.replayed,
        "seconds_load": recovered.seconds_load,
        "seconds_replay": recovered.seconds_replay,
        "log_bytes": recovered.log_bytes,
        "scalars": recovered.scalars,
        "divergence": None if diverged is None else [diverged.step, diverged.tensor],
    }


def _unpack(packed: dict[str, Any]) -> Recovered:
    """Return the recovery that `_pack` turned into plain values."""
    row, diverged = CheckpointRow(**packed["checkpoint"]), packed["divergence"]
    position = Position(row.sequence, row.step, int(row.chain, 16), row.timeline)
    return Recovered(
        plan=Plan(row, (), position, True, ()),
        position=position,
        body={},
        replayed=packed["replayed"],
        seconds_load=packed["seconds_load"],
        seconds_replay=packed["seconds_replay"],
        divergence=None if diverged is None else Divergence(*diverged),
        scalars=[(int(step), dict(noted)) for step, noted in packed["scalars"]],
        notes=packed["notes"],
        log_bytes=packed["log_bytes"],
    )
