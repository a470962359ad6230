"""The state of one rank of a group, as an integration implements it for recovery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...checkpoints import Snapshot
from ..recover import Recovered
from ..state_protocol import Recoverable
from .exchange import Transport
from .shards import GradientShards


class ReplayedState(Recoverable, Protocol):
    """A state whose records may hold gradient shards.

    Attributes:
        shards: the journals of the other ranks, which hold the other shards; None outside of a recovery.
        world: the number of processes that recorded what is recovered.
    """

    shards: GradientShards | None
    world: int


class FormerState(ReplayedState, Protocol):
    """The state of a rank of an earlier group. `restore` builds it as the checkpoint describes it."""

    def derive(self, recovered: Recovered) -> Snapshot:
        """Return the encoded snapshot that the rank itself would have taken where its log was redone to."""
        ...

    def describe_replay(self) -> dict[str, Any]:
        """Return facts about the state that the redone records show and no checkpoint holds, as plain values."""
        ...


class GroupState(ReplayedState, Protocol):
    """The state of one rank of a group."""

    def is_resharded(self, sharding: Mapping[str, Any]) -> bool:
        """Return True if a parameter is sharded in another way than was recorded (`environment["sharding"]`)."""
        ...

    def former_state(self) -> FormerState:
        """Return a state for what another process has recorded."""
        ...

    def assemble(
        self,
        checkpoints: Mapping[int, tuple[Path, dict[str, Any]]],
        owners: Mapping[int, int],
        rank: int,
        transport: Transport,
    ) -> dict[str, Any]:
        """Read all state from the checkpoints of the former ranks, of each no more than is needed. All processes must call it.

        Args:
            checkpoints: by former rank, the folder of each checkpoint that this process owns, and `describe_replay`.
            owners: the process that owns the checkpoint of each former rank.

        Returns:
            The body of the boundary, with the values that belong to this process.

        Raises:
            StateMismatch: the state does not fit the run. Nothing was changed.
            UsageError: the checkpoints do not make up whole parameters.
        """
        ...

    def adopt(self, sources: Sequence[Path], rank: int, *, is_start: bool) -> list[str]:
        """Set all state of a rank whose journal is lost from other ranks' checkpoints of the same step.

        Args:
            sources: folders of checkpoints. The first one gives the state that all ranks share.
            rank: the rank whose own state is read. One of the checkpoints may hold it.
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
