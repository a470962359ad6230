"""The range of a step's gradients that this rank logs: an equal part of their elements, end to end, while all are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import xxhash

from tranlogs.base.types import AnyArray, Array, Piece, SparseArray, TensorSpec

from ..distributed.process_group import Group
from ..tensors import arrays
from ..tensors.arrays import memory_order, odd_strides, to_array
from .reducer import Reducer

Named = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Portion:
    """The logged part of one gradient: `tensor`, and the place of its elements in the order of the whole gradient's memory.

    `piece` is None where the gradient is logged whole (a sparse or empty one).
    """

    name: str
    tensor: torch.Tensor
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    piece: Piece | None = None

    def spec(self) -> TensorSpec:
        """Return the description of what is logged."""
        if self.piece is None:
            return arrays.spec_of(self.name, self.tensor)
        return replace(arrays.spec_of(self.name, self.tensor), shape=self.shape, strides=self.strides, piece=self.piece)

    def placed(self, content: AnyArray) -> AnyArray:
        """Return the bytes of `tensor` with their place in the whole."""
        if self.piece is not None:
            assert isinstance(content, Array)
            content.piece, content.whole, content.strides = self.piece, self.shape, self.strides
        return content


def shares(named: Sequence[Named], rank: int, world: int, copies: int) -> list[Portion]:
    """Return a rank's part of the gradients, and the parts of the following ranks of which it keeps copies."""
    return [portion for i in range(copies) for portion in portions(named, (rank + i) % world, world)]


def portions(named: Sequence[Named], rank: int, world: int) -> list[Portion]:
    """Return a rank's part of the gradients. Each sparse or empty gradient goes to one rank as a whole."""
    dense = [g.layout is torch.strided and g.numel() > 0 for _, g in named]
    total = sum(g.numel() for (_, g), is_dense in zip(named, dense, strict=True) if is_dense)
    low, high = total * rank // world, total * (rank + 1) // world
    found: list[Portion] = []
    start = 0
    for i, ((name, gradient), is_dense) in enumerate(zip(named, dense, strict=True)):
        if not is_dense:
            if i % world == rank:
                found.append(Portion(name, gradient))
            continue
        first, last = max(start, low) - start, min(start + gradient.numel(), high) - start
        start += gradient.numel()
        if first < last:
            found += _ranges(name, gradient, first, last)
    return found


def _ranges(name: str, gradient: torch.Tensor, first: int, last: int) -> Iterator[Portion]:
    flat, strides = _flat(gradient)
    yield Portion(name, flat[first:last], tuple(gradient.shape), strides, Piece("flat", (first,), (last - first,)))


def _flat(gradient: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...] | None]:
    """Return the elements in the order of memory, and the strides if they are not those of C order."""
    gradient = gradient.detach()
    if gradient.is_conj() or gradient.is_neg():
        gradient = gradient.resolve_conj().resolve_neg()
    if gradient.is_contiguous():
        return gradient.reshape(-1), odd_strides(gradient) if 1 in gradient.shape else None
    if not memory_order(gradient).is_contiguous():  # gaps or overlaps
        gradient = gradient.clone(memory_format=torch.preserve_format)
    ordered = memory_order(gradient)
    if not ordered.is_contiguous():
        return gradient.contiguous().reshape(-1), None
    return ordered.reshape(-1), odd_strides(gradient)


def digest(named: Sequence[Named]) -> str:
    """Return a digest of names, layouts and values. It is equal on two ranks if and only if their gradients are."""
    found = xxhash.xxh3_64()
    for name, gradient in named:
        array = to_array(gradient)
        parts = [array.indices, array.values] if isinstance(array, SparseArray) else [array]
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        for part in parts:
            found.update(f"{part.strides}".encode())
            found.update(part.data.data)
    return found.hexdigest()


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
