"""The division of a step's gradients among the ranks of DistributedDataParallel, whose gradients are equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...ddp.gradient_ranges import Named, Portion, digest, shares
from ...ddp.reducer import Reducer
from ...distributed.process_group import Group


class GradientDivision:
    """Decides which portions of the gradients this rank logs.

    Args:
        group: all processes.
        reducers: reducers of the model.
        copies: number of journals in which each gradient is logged.
        on_unequal: called with the reason when ranks turn out to have different gradients.

    Attributes:
        is_active: True while gradients are equal on all ranks, as far as is known.
        environment: environment of the run, which records the division.
    """

    def __init__(self, group: Group, reducers: Sequence[Reducer], copies: int, on_unequal: Callable[[str], None]) -> None:
        self._group, self._reducers, self.copies, self._on_unequal = group, reducers, copies, on_unequal
        self.is_active = False
        self.environment: dict[str, Any] = {}
        self._checked: set[str] = set()  # optimizers whose gradients were compared in this process
        # By optimizer: the sizes of its groups, and the parameters that belong to no reducer.
        self._unreduced: dict[str, tuple[list[int], list[torch.Tensor]]] = {}

    def share(self, name: str, optimizer: torch.optim.Optimizer, named: Sequence[Named]) -> list[Portion] | None:
        """Return the portions of a step's gradients that this rank logs; None for all of them."""
        if not self.is_active:
            return None
        if not self.is_reduced((name, optimizer)):  # a group was added, or a parameter trains that was frozen
            self._on_unequal(
                f"optimizer {name!r} trains parameters whose gradients no DistributedDataParallel sums (it sums only "
                "parameters that it had, and that required gradients, when it was created)"
            )
            return None
        if name not in self._checked:
            self._checked.add(name)
            digests = self._group.gather(digest(named))
            if len(set(digests)) > 1:
                self._on_unequal(f"the gradients of rank {first_other(digests)} differ from those of rank 0")
                return None
        return shares(named, self._group.rank, self._group.world, self.copies)

    def is_reduced(self, named: tuple[str, torch.optim.Optimizer]) -> bool:
        """Return True if a reducer sums all gradients of an optimizer; other gradients differ between ranks."""
        name, optimizer = named
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        if self._unreduced.get(name, ([], []))[0] != sizes:
            reduced = set().union(*(reducer.ids() for reducer in self._reducers))
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self._unreduced[name] = sizes, [p for p in parameters if id(p) not in reduced]
        return not any(p.requires_grad or p.grad is not None for p in self._unreduced[name][1])

    def stop(self) -> None:
        """Log all gradients on each rank from now on. There are no shares to keep copies of."""
        self.is_active, self.copies = False, 1
        if "ddp" in self.environment:
            self.environment["ddp"] |= {"is_divided": False, "copies": 1}


def first_other(values: Sequence[str]) -> int:
    """Return the first rank whose value is not that of rank 0."""
    return next(rank for rank, value in enumerate(values) if value != values[0])
