"""Recovery of a run that another number of processes continues, or whose parameters are sharded in another way now.

Sharded: a part of the parameters can be redone without the other parts. One of the present processes therefore compacts the
log of each former rank into a checkpoint at the step on which the processes have agreed. If a former rank has a checkpoint at
that step, nothing is redone or written. Each process then reads its ranges from these checkpoints. No process needs memory for
more than one former rank's part and its own part.

The checkpoints are written to the folder of the process that makes them and deleted when the recovery ends. An interrupted
recovery leaves the former journals unchanged, and the next one makes the checkpoints again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import RecoveryError, error_text
from ...catalog import CheckpointRow
from ...checkpoints import Snapshot, write_folder
from ...log.record_format import Position
from ..recover import Recovered, open_planned_checkpoint
from ..recovery_plan import RecoveryPlan
from ..state_protocol import Divergence
from .decide import Generation
from .exchange import Transport, gather, message
from .group_state import FormerState, GroupState

# Entries of the manifest that the new checkpoint repeats.
_MANIFEST_KEYS = ("run_id", "rank", "framework", "environment", "parent", "fork_sequence", "fork_step")

message(CheckpointRow)
message(Divergence)


@message
@dataclass(frozen=True, slots=True)
class FormerRank:
    """What a report needs of the recovery of a former rank.

    Attributes:
        checkpoint: the checkpoint from which its log was redone.
    """

    rank: int
    checkpoint: CheckpointRow
    notes: list[str]
    replayed: int = 0
    seconds_load: float = 0.0
    seconds_replay: float = 0.0
    divergence: Divergence | None = None
    log_bytes: int = 0


class Resharding:
    """Recovery of a resharded run, for one process. It writes its checkpoints to the folder `scratch`."""

    def __init__(
        self, rank: int, world: int, generation: Generation, readable_by: Mapping[int, Sequence[int]], scratch: Path
    ) -> None:
        self._rank, self._scratch = rank, scratch
        # Without shards each rank had all parameters, and state of its own.
        held = generation.held if generation.is_sharded else generation.held[:world]
        # The process of the same rank compacts a rank's journal; the others, in turn those that can read it.
        able = {one.rank: readable_by[one.rank] for one in held}
        self._owners = {rank: rank if rank < world else able[rank][rank % len(able[rank])] for rank in able}
        self._former: dict[int, FormerRank] = {}
        self._checkpoints: dict[int, tuple[Path, dict[str, Any]]] = {}  # folder, and `FormerState.describe_replay`

    @property
    def assigned_ranks(self) -> list[int]:
        """The ranks whose journals this process compacts."""
        return [rank for rank, owner in self._owners.items() if owner == self._rank]

    def use_checkpoint(self, rank: int, journal: Path, plan: RecoveryPlan, notes: list[str]) -> None:
        """Use the checkpoint of a former rank that was taken at the target, so that nothing is to be redone.

        Raises:
            CorruptCheckpoint: it is damaged.
        """
        start = time.monotonic()
        with open_planned_checkpoint(journal, plan) as checkpoint:
            checkpoint.demand_sound()
            seconds = time.monotonic() - start
            self._former[rank] = FormerRank(rank, plan.checkpoint, [*plan.notes, *notes], seconds_load=seconds)
            self._checkpoints[rank] = checkpoint.folder, {}

    def compact(self, rank: int, state: FormerState, recovered: Recovered, manifest: Mapping[str, Any]) -> None:
        """Write a checkpoint of what was redone from a former rank's journal, from a checkpoint with this manifest.

        Raises:
            RecoveryError: the checkpoint cannot be written.
        """
        folder = self._scratch / f"rank{rank}"
        try:
            shutil.rmtree(folder, ignore_errors=True)
            write_snapshot(folder, state.derive(recovered), recovered.position, manifest)
        except OSError as error:
            raise RecoveryError(
                f"{folder}: the log of rank {rank} cannot be compacted into a checkpoint ({error_text(error)}), from which the "
                f"processes would read their parts. The run is unchanged: start again when the disk can be written, or with "
                f"{len(self._owners)} processes"
            ) from error
        self._former[rank] = FormerRank(
            rank,
            recovered.plan.checkpoint,
            recovered.notes,
            recovered.replayed,
            recovered.seconds_load,
            recovered.seconds_replay,
            recovered.divergence,
            recovered.log_bytes,
        )
        self._checkpoints[rank] = folder, state.describe_replay()

    def assemble(self, state: GroupState, position: Position, transport: Transport) -> Recovered:
        """Set this process's state from the checkpoints of all former ranks. All processes must call it.

        Its journal continues at `position`.

        Raises:
            StateMismatch: the state does not fit the run.
            UsageError: the checkpoints do not make up whole parameters.
        """
        answers = gather(transport, list(self._former.values()))
        found = {one.rank: one for one in sorted((one for part in answers for one in part), key=lambda one: one.rank)}
        start = time.monotonic()
        body: dict[str, Any] = state.assemble(self._checkpoints, self._owners, self._rank, transport)
        seconds = time.monotonic() - start
        own = found[self._rank if self._rank in found else min(found)]
        row = own.checkpoint
        at_checkpoint = Position(row.sequence, row.step, int(row.chain, 16), row.timeline)
        return Recovered(
            plan=RecoveryPlan(row, (), at_checkpoint, True, ()),
            position=position,
            body=body,
            replayed=max(one.replayed for one in found.values()),
            seconds_load=max(one.seconds_load for one in found.values()) + seconds,
            seconds_replay=max(one.seconds_replay for one in found.values()),
            divergence=min(
                (one.divergence for one in found.values() if one.divergence), key=lambda one: one.step, default=None
            ),
            notes=[text for one in found.values() for text in one.notes],
            log_bytes=own.log_bytes,
        )


def write_snapshot(folder: Path, snapshot: Snapshot, position: Position, manifest: Mapping[str, Any]) -> None:
    """Write the folder of a checkpoint that is of no use after a crash, at the boundary at `position`.

    Raises:
        OSError: the disk is full or fails. Nothing is left on it.
    """
    snapshot.order()
    described = {
        **{key: manifest[key] for key in _MANIFEST_KEYS if key in manifest},
        "step": position.step,
        "sequence": position.sequence,
        "chain": f"{position.chain:016x}",
        "timeline": position.timeline,
        "created_at": time.time(),
    }
    write_folder(folder, snapshot, described, is_synced=False)


def describe_resize(step: int, before: int, now: int) -> list[str]:
    """Return what differs after the number of processes has changed from `before` to `now`, one sentence each."""
    continued = (
        f"{_count_processes(before)} recorded the run, and {_count_processes(now)} {_continues(now)} it from step {step}: "
        "weights, optimizer state and tracked objects are those of the run at that step; later steps differ from those of the "
        "earlier processes, since gradients are averaged over other batches and summed in another order"
    )
    last = min(before, now)
    kept = f"{_name_ranks(0, last)} {_continues(last)} with {'its' if last == 1 else 'their'} own"
    if now < before:
        return [continued, f"random numbers and buffers: {kept}; those of {_name_ranks(now, before)} end"]
    new = (
        f"{_name_ranks(before, now)} {_continues(now - before)} with the buffers of rank 0, and with new random numbers that "
        "derive from the run's id, the step and the rank"
    )
    return [continued, f"random numbers and buffers: {kept}; {new}"]


def describe_resharding(step: int) -> list[str]:
    """Return what differs where as many processes as before hold other parts of the parameters, one sentence each."""
    return [
        f"parameters are sharded in another way from step {step} on: weights, optimizer state and tracked objects are those of "
        "the run at that step; later steps may be summed in another order"
    ]


def _count_processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _continues(count: int) -> str:
    return "continues" if count == 1 else "continue"


def _name_ranks(first: int, end: int) -> str:
    return f"rank {first}" if end - first == 1 else f"ranks {first} to {end - 1}"
