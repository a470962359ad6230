"""The coordinator of a process that trains alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tranlogs.ranks import FindObstacle, GroupRecovered, ReplacementSource
from tranlogs.training import Journal, Progress

from ...ddp.gradient_ranges import Portion
from ...elastic.recoverable_state import RecoverableState
from ...elastic.world_size import is_of_many, recover_alone


class SingleProcess:
    """A `RankCoordinator` that has nobody to ask.

    Args:
        state: state of this process.
        rank: number of the journal that this process writes.
    """

    is_single = True
    world = 1
    copies = 1
    recheck_obstacle = ""

    def __init__(self, state: RecoverableState, rank: int) -> None:
        self._state, self.rank = state, rank

    def describe(self, environment: dict[str, Any]) -> None:
        """Add nothing: no sum of gradients depends on other processes."""

    def find_caveats(self) -> list[str]:
        return []

    def share(
        self, name: str, optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, torch.Tensor]]
    ) -> list[Portion] | None:
        return None

    def at_boundary(
        self,
        journal: Journal,
        body: dict[str, Any],
        whole: Callable[[], dict[str, Any]],
        *,
        wanted: bool | None,
        read_digests: Callable[[], bytes],
    ) -> bool | None:
        return wanted

    def leave(self) -> None:
        """Do nothing."""

    def require_same_settings(self, settings: dict[str, str]) -> None:
        """Do nothing."""

    def recover(
        self,
        journal: Journal,
        read_built: Callable[[], dict[str, Any]],
        step: int | None,
        progress: Progress | None,
        spare: ReplacementSource,
        find_obstacle: FindObstacle | None = None,
    ) -> GroupRecovered | None:
        """Recover what several processes recorded. Return None if the run is fresh, or one process alone has recorded it."""
        if not is_of_many(journal.paths.folder):
            return None
        return recover_alone(journal, self._state, step, progress, spare, find_obstacle)

    def find_unit_obstacle(self, read: Callable[[str], Any]) -> str:
        return ""

    def restore_division(self, body: dict[str, Any]) -> None:
        """Do nothing: one process logs all gradients."""

    def restore_reducers(self, body: dict[str, Any], step: int, checkpoint_step: int) -> list[str]:
        return []

    def stand_at(self, step: int) -> None:
        """Do nothing."""

    def first_timeline_ids(self) -> dict[str, Any]:
        return {}

    def exchange_backups(self, whole: dict[str, Any]) -> None:
        """Do nothing."""

    def all_gather(self, value: Any) -> list[Any]:
        return [value]

    def gather_caveats(self, caveats: list[str]) -> list[str]:
        return caveats
