"""Gathers: tensors copied into one flat piece of memory, by one multi-tensor copy for each dtype."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from ..tensors.arrays import memory_order

# Dtypes for which the multi-tensor copy has a kernel of its own on every device. Complex tensors may be lazily conjugated,
# which a copy of each alone resolves.
_MULTI_TENSOR = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}
_ALIGNMENT = 16  # a slice of the memory that begins at a multiple of it can be seen as any dtype


class Form(NamedTuple):
    """Layout of a tensor in flat memory; `strides` is None for C order, else dense."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def form_in_memory_order(tensor: torch.Tensor) -> Form:
    """Return the form with the tensor's own order in memory; C order where the tensor has gaps or overlaps."""
    is_dense = memory_order(tensor).is_contiguous()
    return Form(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()) if is_dense else None)


class TensorOffsets:
    """Offsets of tensors of given forms that lie one after the other.

    Attributes:
        forms: of the tensors.
        starts: offset of each in bytes.
        nbytes: of all, with the gaps.
    """

    def __init__(self, forms: Sequence[Form], *, alignment: int = 1) -> None:
        """Place tensors at multiples of `alignment` and of their item size.

        With an alignment of 1 there are no gaps while the item sizes do not grow from one tensor to the next.
        """
        self.forms = list(forms)
        self.starts: list[int] = []
        at = 0
        for form in self.forms:
            unit = max(alignment, form.dtype.itemsize)
            at = -(-at // unit) * unit
            self.starts.append(at)
            at += form.nbytes
        self.nbytes = at

    def stop(self, index: int) -> int:
        """Return the offset of the end of a tensor."""
        return self.starts[index] + self.forms[index].nbytes

    def view(self, flat: torch.Tensor, index: int, base: int = 0) -> torch.Tensor:
        """Return the memory of a tensor in `flat`, whose first byte has the offset `base`, as a tensor of its form."""
        form = self.forms[index]
        if form.nbytes == 0:
            return torch.empty(form.shape, dtype=form.dtype, device=flat.device)
        part = flat[self.starts[index] - base : self.stop(index) - base].view(form.dtype)
        return part.view(form.shape) if form.strides is None else part.as_strided(form.shape, form.strides)

    def rounds(self, nbytes_max: int) -> list[range]:
        """Divide the tensors into runs of at most `nbytes_max` bytes; a larger tensor is a run by itself."""
        found: list[range] = []
        first = 0
        for i in range(len(self.forms)):
            if i > first and self.stop(i) - self.base(first) > nbytes_max:
                found.append(range(first, i))
                first = i
        if self.forms:
            found.append(range(first, len(self.forms)))
        return found

    def base(self, first: int) -> int:
        """Return the offset from which memory for a run that begins with the tensor `first` starts."""
        return self.starts[first] // _ALIGNMENT * _ALIGNMENT


class Gather:
    """Copies tensors into views of flat memory.

    The multi-tensor kernel wants one dtype, and sources laid out as their targets; where a source is laid out otherwise,
    values are copied all the same, tensor by tensor.
    """

    def __init__(self, views: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        """Plan for `sources`: the tensors of later copies should be laid out as these are."""
        self._views = list(views)
        self._groups: list[list[int]] = []
        self._single: list[int] = []
        by_dtype: dict[torch.dtype, list[int]] = {}
        for i, (view, source) in enumerate(zip(views, sources, strict=True)):
            if view.numel() == 0:
                continue
            if view.dtype in _MULTI_TENSOR and view.stride() == source.stride() and not source.is_neg():
                by_dtype.setdefault(view.dtype, []).append(i)
            else:
                self._single.append(i)
        self._groups = list(by_dtype.values())
        self._is_one_group = len(self._groups) == 1 and len(self._groups[0]) == len(self._views)

    @torch.no_grad()
    def copy(self, sources: Sequence[torch.Tensor]) -> None:
        """Copy the sources, on the current stream."""
        views = self._views
        if self._is_one_group:
            torch._foreach_copy_(views, list(sources), non_blocking=True)
            return
        for group in self._groups:
            torch._foreach_copy_([views[i] for i in group], [sources[i] for i in group], non_blocking=True)
        for i in self._single:
            views[i].copy_(sources[i], non_blocking=True)

    def bound(self, sources: Sequence[torch.Tensor]) -> partial[None]:
        """Return the copy of `sources` as an operation for a stream."""
        return partial(self.copy, sources)
