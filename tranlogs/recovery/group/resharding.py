"""Recovery of a run whose parameters are sharded in another way now: over more or fewer processes, or over another mesh.

A part of the parameters can be redone without the other parts. One of the present processes therefore compacts the log of each
former rank into a checkpoint at the step on which the processes have agreed. If a former rank has a checkpoint at that step,
nothing is redone or written. Each process then reads its ranges from these checkpoints. No process needs memory for more than
one former rank's part and its own part.

The checkpoints are written to the folder of the process that makes them and deleted when the recovery ends. An interrupted
recovery leaves the former journals unchanged, and the next one makes the checkpoints again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...base.errors import RecoveryError, error_text
from ...catalog import CheckpointRow
from ...checkpoints import Snapshot, write_folder
from ...log.record_format import Position
from ..recover import Recovered, open_planned_checkpoint
from ..recovery_plan import RecoveryPlan
from ..state_protocol import Divergence
from .decision.generations import Generation
from .group_state import FormerState, GroupState
from .journal_access import Transport, read_run_id
from .summary.journal_summary import JournalSummary

# Entries of the manifest that the new checkpoint repeats.
_MANIFEST_KEYS = ("run_id", "rank", "framework", "environment", "parent", "fork_sequence", "fork_step")


@dataclass(frozen=True, slots=True)
class FormerRank:
    """The checkpoint that one process made from a former rank's journal.

    Attributes:
        folder: the folder of the checkpoint, at the step at which all processes resume.
        recovered: the outcome of the recovery that led to that step.
        replay: the result of `FormerState.describe_replay`; empty if nothing was redone.
    """

    folder: Path
    recovered: Recovered
    replay: dict[str, Any]


class Resharding:
    """Recovery of a resharded run, for one process.

    All processes must create an instance at the same time, because they exchange which journals each of them can read.

    Args:
        rank: the rank of this process.
        world: the number of processes.
        generation: the generation that is recovered.
        folders: where to read each rank's journal.
        scratch: the folder for the checkpoints that this process makes.
        transport: connects the processes.
    """

    def __init__(
        self, rank: int, world: int, generation: Generation, folders: Mapping[int, Path], scratch: Path, transport: Transport
    ) -> None:
        self._rank, self._scratch, self._transport = rank, scratch, transport
        held = [summary for summary in generation.summaries if not summary.is_empty]
        # Without shards each rank had all parameters, and state of its own.
        held = held if generation.is_sharded else held[:world]
        readable = [summary.rank for summary in held if _can_read(rank, summary, folders)]
        readable_by = [answer["readable"] for answer in transport.gather({"readable": readable})]
        self._owners = {summary.rank: _choose_owner(summary.rank, readable_by, world) for summary in held}
        self._former: dict[int, FormerRank] = {}

    @property
    def assigned_ranks(self) -> list[int]:
        """The ranks whose journals this process compacts."""
        return [rank for rank, owner in self._owners.items() if owner == self._rank]

    def use_checkpoint(self, rank: int, journal: Path, plan: RecoveryPlan, notes: list[str]) -> None:
        """Use the checkpoint of a former rank that was taken at the target.

        Args:
            rank: the former rank.
            journal: its journal.
            plan: how to get to the target; it has nothing to redo.
            notes: what to report.

        Raises:
            CorruptCheckpoint: it is damaged.
        """
        start = time.monotonic()
        with open_planned_checkpoint(journal, plan) as checkpoint:
            checkpoint.demand_sound()
            seconds = time.monotonic() - start
            found = Recovered(plan, plan.position, {}, 0, seconds, 0.0, None, [], [*plan.notes, *notes], 0)
            self._former[rank] = FormerRank(checkpoint.folder, found, {})

    def compact(self, rank: int, state: FormerState, recovered: Recovered, about: Mapping[str, Any]) -> None:
        """Write a checkpoint of what was redone from a former rank's journal.

        Args:
            rank: the former rank.
            state: its state at the target.
            recovered: how it was redone.
            about: the manifest of the checkpoint from which the redo began.

        Raises:
            RecoveryError: the checkpoint cannot be written.
        """
        folder = self._scratch / f"rank{rank}"
        try:
            shutil.rmtree(folder, ignore_errors=True)
            write_snapshot(folder, state.derive(recovered), recovered.position, about)
        except OSError as error:
            raise RecoveryError(
                f"{folder}: the log of rank {rank} cannot be compacted into a checkpoint ({error_text(error)}), from which the "
                f"processes would read their parts. The run is unchanged: start again when the disk can be written, or with "
                f"{len(self._owners)} processes"
            ) from error
        self._former[rank] = FormerRank(folder, recovered, state.describe_replay())

    def assemble(self, state: GroupState, position: Position) -> Recovered:
        """Set this process's state from the checkpoints of all former ranks. All processes must call it.

        Args:
            state: the state of this process.
            position: where its journal continues.

        Raises:
            StateMismatch: the state does not fit the run.
            UsageError: the checkpoints do not make up whole parameters.
        """
        answers = self._transport.gather([[rank, _pack(one.recovered)] for rank, one in self._former.items()])
        found = dict(sorted((rank, _unpack(one)) for packed in answers for rank, one in packed))
        start = time.monotonic()
        checkpoints = {rank: (one.folder, one.replay) for rank, one in self._former.items()}
        body: dict[str, Any] = state.assemble(checkpoints, self._owners, self._rank, self._transport)
        seconds = time.monotonic() - start
        own = found[self._rank if self._rank in found else min(found)]
        diverged = [one.divergence for one in found.values() if one.divergence is not None]
        assembled: Recovered = replace(
            own,
            position=position,
            body=body,
            replayed=max(one.replayed for one in found.values()),
            seconds_load=max(one.seconds_load for one in found.values()) + seconds,
            seconds_replay=max(one.seconds_replay for one in found.values()),
            divergence=min(diverged, key=lambda one: one.step, default=None),
            notes=[text for one in found.values() for text in one.notes],
        )
        return assembled


def write_snapshot(folder: Path, snapshot: Snapshot, position: Position, about: Mapping[str, Any]) -> None:
    """Write the folder of a checkpoint that is of no use after a crash.

    Args:
        folder: to be written.
        snapshot: the encoded state.
        position: of the boundary to which the state belongs.
        about: the manifest of the checkpoint from which the redo began.

    Raises:
        OSError: the disk is full or fails. Nothing is left on it.
    """
    snapshot.order()
    described = {
        **{key: about[key] for key in _MANIFEST_KEYS if key in about},
        "step": position.step,
        "sequence": position.sequence,
        "chain": f"{position.chain:016x}",
        "timeline": position.timeline,
        "created_at": time.time(),
    }
    write_folder(folder, snapshot, described, is_synced=False)


def _can_read(rank: int, summary: JournalSummary, folders: Mapping[int, Path]) -> bool:
    """Return True if a process can read a journal: its own journal, one next to it, or one on a shared disk."""
    return rank in (summary.rank, summary.sender) or read_run_id(folders[summary.rank]) == summary.run_id


def _choose_owner(rank: int, readable_by: list[list[int]], world: int) -> int:
    """Return the process that compacts a rank's journal: the process of the same rank, or those that can read it in turn.

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
        "divergence": None if diverged is None else [diverged.step, diverged.tensor],
    }


def _unpack(packed: dict[str, Any]) -> Recovered:
    """Return the recovery that `_pack` turned into plain values. The checkpoint of the former rank has its scalars."""
    row, diverged = CheckpointRow(**packed["checkpoint"]), packed["divergence"]
    position = Position(row.sequence, row.step, int(row.chain, 16), row.timeline)
    return Recovered(
        plan=RecoveryPlan(row, (), position, True, ()),
        position=position,
        body={},
        replayed=packed["replayed"],
        seconds_load=packed["seconds_load"],
        seconds_replay=packed["seconds_replay"],
        divergence=None if diverged is None else Divergence(*diverged),
        scalars=[],
        notes=packed["notes"],
        log_bytes=packed["log_bytes"],
    )
