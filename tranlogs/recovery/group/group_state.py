"""The state of one rank of a group, as an integration implements it for recovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..protocol import Recoverable
from .gradient_shards import GradientShards
from .journal_access import Transport


class GroupState(Recoverable, Protocol):
    """A state whose records may hold gradient shards.

    Attributes:
        shards: the journals of the other ranks, which hold the other shards; None outside of a recovery.
        world: the number of processes that recorded what is recovered.
    """

    shards: GradientShards | None
    world: int

    def is_resharded(self, sharding: Mapping[str, Any]) -> bool:
        """Return True if a parameter is sharded in another way than was recorded (`environment["sharding"]`)."""
        ...

    def new_part(self) -> GroupState:
        """Return a state that `restore` builds as the checkpoint describes it, for what another process has recorded."""
        ...

    def assemble(self, parts: dict[int, Any], owners: Mapping[int, int], rank: int, transport: Transport) -> dict[str, Any]:
        """Set all state from the parts of the earlier ranks. All processes must call it.

        Args:
            parts: the parts that this process has redone, by earlier rank. The call uses them up.
            owners: the process that has redone the part of each earlier rank.
            rank: the rank of this process.
            transport: connects the processes.

        Returns:
            The body of the boundary, with the values that belong to this process.

        Raises:
            StateMismatch: the state does not fit the run. Nothing was changed.
            UsageError: the parts do not make up whole parameters.
        """
        ...

    def adopt(self, sources: Sequence[Path], rank: int, *, is_start: bool) -> list[str]:
        """Set all state of a rank whose journal is lost from other ranks' checkpoints of the same step.

        Args:
            sources: folders of checkpoints. The first one gives the state that all ranks share.
            rank: the rank whose own state is wanted. One of the checkpoints may hold it.
            is_start: True if no step was taken yet. State that no checkpoint holds then keeps its initial value.

        Returns:
            What could not be restored, one sentence each.
        """
        ...

    def digest(self, *, is_forced: bool = False) -> str:
        """Return a digest of the state that is the same on all ranks.

        Args:
            is_forced: take the digest even if the ranks share no state. Without it, "" is returned in that case.
        """
        ...
