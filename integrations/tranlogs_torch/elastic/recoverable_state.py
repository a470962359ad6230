"""A state that ranks recover together, perhaps over another number of processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tranlogs.ranks import FormerState, Transport

from ..replay.redo import ReplayableState
from .lost_rank_state import adopt
from .shard_loading import Assembly


class RecoverableState(ReplayableState, ABC):
    """The state of a PyTorch run, with what ranks exchange while they recover."""

    @abstractmethod
    def former_state(self) -> FormerState:
        """Return a state for what another process recorded."""

    def assemble(
        self,
        checkpoints: Mapping[int, tuple[Path, dict[str, Any]]],
        owners: Mapping[int, int],
        rank: int,
        transport: Transport,
    ) -> dict[str, Any]:
        """Read this process's parts of all tensors from the checkpoints of the former ranks."""
        return Assembly(self, checkpoints, owners, rank, transport).run()

    def adopt(self, sources: Sequence[Path], rank: int, *, is_start: bool) -> list[str]:
        """Take the state of a rank whose journal is lost from the checkpoints of others."""
        return adopt(self, sources, rank, self.built if is_start else None)
