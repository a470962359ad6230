"""Compare what two runs ended with, bit for bit: equal values with other bits (-0.0 and 0.0) differ, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

_PARTS = {  # key in the file -> name, and what there is of it
    "weights": ("weights", "{} tensors"),
    "optimizer": ("optimizer", "{} tensors and settings"),
    "scheduler": ("scheduler", "{} values"),
    "random": ("random numbers", "torch, numpy, Python"),
    "loss": ("loss curve", "{} points"),
}
_DIFFERENCES_SHOWN = 5  # of each part


@dataclass(frozen=True, slots=True)
class Compared:
    """One part of what two runs ended with.

    Attributes:
        what: its name.
        extent: what there is of it, in words.
        digests: of the whole part in both runs.
        differences: where they differ, in words; the first few.
    """

    what: str
    extent: str
    digests: tuple[str, str]
    differences: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return self.digests[0] == self.digests[1] and not self.differences


def compare_states(one: Path, other: Path) -> list[Compared]:
    """Compare two files of `torch.save`, part by part."""
    mine, theirs = (torch.load(path, weights_only=True) for path in (one, other))
    return [compare(what, extent, mine[key], theirs[key]) for key, (what, extent) in _PARTS.items()]


def compare(what: str, extent: str, one: Any, other: Any) -> Compared:
    """Compare two trees of plain values and tensors. In `extent`, {} is their number."""
    mine, theirs = dict(_leaves(one)), dict(_leaves(other))
    found = [f"{what}: {path} is in one run only" for path in [*mine, *theirs] if (path in mine) != (path in theirs)]
    found += [f"{what}: {path} differs" for path in mine if path in theirs and not _is_same(mine[path], theirs[path])]
    if len(found) > _DIFFERENCES_SHOWN:
        found[_DIFFERENCES_SHOWN:] = [f"{what}: {len(found) - _DIFFERENCES_SHOWN} more"]
    return Compared(what, extent.format(len(mine)), (_digest(mine), _digest(theirs)), tuple(found))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}[{i}]")
    else:
        yield path, value


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other))
    return type(one) is type(other) and repr(one) == repr(other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _digest(leaves: dict[str, Any]) -> str:
    digest = xxhash.xxh3_128()
    for path, value in leaves.items():
        if isinstance(value, torch.Tensor):
            digest.update(f"{path} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(_bits(value).numpy().data)
        else:
            digest.update(f"{path} {value!r}".encode())
    return digest.hexdigest()
