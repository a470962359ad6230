"""The coordinator of a process that trains alone, and the base of that of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tranlogs.ranks import FindObstacle, GroupRecovered, ReplacementSource
from tranlogs.training import GroupDecision, Journal, Progress, Rung

from ..ddp.gradient_ranges import Portion
from ..elastic.shard_loading import RecoverableState
from ..elastic.world_size import is_of_many, recover_alone


class RankCoordinator:
    """Connects this process with the others that train the run; here there are none. `GroupCoordinator` has others.

    Args:
        state: state of this process.
        rank: number of the journal that this process writes.

    Attributes:
        is_single: True if no other process takes part, so that each step logs all gradients and recovery needs one journal.
        rank: rank of this process, from 0.
        world: number of processes.
    """

    is_single = True
    world = 1

    def __init__(self, state: RecoverableState, rank: int) -> None:
        self._state, self.rank = state, rank

    @property
    def copies(self) -> int:
        """Number of journals in which each gradient is logged."""
        return 1

    @property
    def portion(self) -> float:
        """The part of each step's gradients that this rank logs."""
        return 1.0

    @property
    def recheck_obstacle(self) -> str:
        """Why the processes cannot compute a unit again together; "" if they can."""
        return ""

    def describe(self, environment: dict[str, Any]) -> None:
        """Put what sums of gradients depend on into the run's environment."""

    def find_caveats(self) -> list[str]:
        """Return what is not recovered, one sentence each.

        Raises:
            UsageError: the log would be wrong.
        """
        return []

    # Training.

    def share(
        self, name: str, optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, torch.Tensor]]
    ) -> list[Portion] | None:
        """Return the portions of a step's gradients that this rank logs; None for all of them."""
        return None

    def share_rung(self, run: Path, rung: Rung) -> Rung:
        """Return what decides on this rank whether tensors are logged.

        Raises:
            UsageError: `rung` logs none, and the ranks do not wait for each other.
        """
        return rung

    def demand_question(self) -> None:
        """Ask the other ranks at the next boundary with a step whether a checkpoint is due. All must call it."""

    def decide(
        self, journal: Journal, rung: Rung, *, is_wanted: bool, is_due: bool, is_end: bool, read_digests: Callable[[], bytes]
    ) -> GroupDecision | None:
        """Return what all ranks do at this boundary; None if each of them decides for itself.

        Args:
            journal: journal of this rank.
            rung: tells whether tensors are logged.
            is_wanted: True if a checkpoint was asked for.
            is_due: True if a boundary is to be recorded where no tensors are logged.
            is_end: True if a loop ends here.
            read_digests: returns the fingerprint of all parameters; empty if only some were compared.
        """
        return None

    def at_boundary(
        self,
        journal: Journal,
        body: dict[str, Any],
        whole: Callable[[], dict[str, Any]],
        decision: GroupDecision | None,
        read_digests: Callable[[], bytes],
    ) -> None:
        """Add this rank's part to the body of a boundary that is recorded.

        Args:
            journal: journal of this rank.
            body: body of the boundary.
            whole: returns what a checkpoint holds of the boundary.
            decision: of all ranks on this boundary.
            read_digests: see `decide`.
        """

    def prepare_checkpoint(self, journal: Journal, whole: dict[str, Any]) -> None:
        """Prepare a checkpoint that all ranks take outside of `decide`."""

    def leave(self) -> None:
        """Stop exchanging messages: the other processes may have ended."""

    # Recovery. All ranks call these in the same order.

    def require_same_settings(self, settings: dict[str, str]) -> None:
        """Refuse settings that differ between ranks; later calls do nothing.

        Raises:
            UsageError: they differ; the message names the ranks and their values.
        """

    def recover(
        self,
        journal: Journal,
        read_built: Callable[[], dict[str, Any]],
        step: int | None,
        progress: Progress | None,
        spare: ReplacementSource,
        find_obstacle: FindObstacle | None = None,
    ) -> GroupRecovered | None:
        """Recover to the boundary that all ranks can reach.

        Args:
            journal: journal of this rank.
            read_built: returns this rank's auxiliary state as the script built it.
            step: the step to end at; None for the newest.
            progress: called with what is done.
            spare: source of sound copies of damaged files.
            find_obstacle: see `GroupRecovery.recover`.

        Returns:
            None if the run is fresh, or if one process alone has recorded it and trains it.
        """
        if not is_of_many(journal.paths.folder):
            return None
        return recover_alone(journal, self._state, step, progress, spare, find_obstacle)

    def find_unit_obstacle(self, read: Callable[[str], Any]) -> str:
        """Return why a unit cannot be computed again; "" if it can.

        Args:
            read: returns a part of the boundary that ends the unit; None if it has no such part.
        """
        return ""

    def restore_division(self, body: dict[str, Any]) -> None:
        """Restore from a boundary whether the ranks were known to be equal, and whether they divide the log."""

    def restore_reducers(self, body: dict[str, Any], step: int, checkpoint_step: int) -> list[str]:
        """Make the reducers round as those of the run did. Return where that is impossible, one sentence each.

        Args:
            body: body of the boundary at which recovery ended.
            step: step of that boundary.
            checkpoint_step: step of the checkpoint that this rank has loaded.
        """
        return []

    def align_rung(self, rung: Rung) -> None:
        """Let all ranks log the same from the first step on. All must call it."""

    def stand_at(self, step: int) -> None:
        """Note the step of the boundary to which training was set back."""

    def first_timeline_ids(self) -> dict[str, Any]:
        """Return the entries of the environment that identify a fresh run of several ranks."""
        return {}

    def exchange_backups(self, whole: dict[str, Any]) -> None:
        """Keep a copy of the next rank's auxiliary state, in case that rank loses its disk."""

    def all_gather(self, value: Any) -> list[Any]:
        """Return the value of each rank, by rank."""
        return [value]

    def gather_caveats(self, caveats: list[str]) -> list[str]:
        """Return this rank's caveats and those of the others. The last call before training begins."""
        return caveats
