"""Comparison of two nests of plain values and tensors, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tranlogs.base.errors import DataError
from tranlogs.base.types import Bytes
from tranlogs.training import Progress

from .arrays import flat_bytes


def demand_equal(path: Path, wanted: Any, found: Any, progress: Progress | None = None) -> None:
    """Compare what was read back from a file that is about to be published.

    Raises:
        DataError: it is not what was written.
    """
    leaves, others = dict(_leaves(wanted, ())), dict(_leaves(found, ()))
    differing = list(leaves.keys() ^ others.keys())
    for i, (name, value) in enumerate(leaves.items()):
        if not differing and not _is_same(value, others[name]):
            differing = [name]
        if progress is not None:
            progress("compared", i + 1, len(leaves))
    if differing:
        which = ".".join(map(str, differing[0]))
        raise DataError(path, f"{which} reads back differently from what was written, so nothing was kept. Check the disk")


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the leaves and the empty containers, each with its path."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, (list, tuple)) and value:
        for i, item in enumerate(value):
            yield from _leaves(item, (*path, i))
    else:
        yield path, value


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return isinstance(other, torch.Tensor) and have_same_bits(value, other)
    if isinstance(value, float):
        return isinstance(other, float) and (value == other or (value != value and other != other))
    return bool(value == other)


def have_same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if shape, dtype and every bit are the same; the order of the elements in memory may differ."""
    if (a.layout, a.dtype, a.shape) != (b.layout, b.dtype, b.shape):
        return False
    if a.layout is torch.sparse_coo:
        return have_same_bits(a._indices(), b._indices()) and have_same_bits(a._values(), b._values())
    return bool(np.array_equal(_bytes(a), _bytes(b)))


def _bytes(tensor: torch.Tensor) -> Bytes:
    return flat_bytes(tensor.detach().cpu().resolve_conj().resolve_neg().contiguous())
