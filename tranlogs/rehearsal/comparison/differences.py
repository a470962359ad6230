"""Differences between two runs, and between nested values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...base.types import Array, Extension, SparseArray
from ...encoding.tree import to_numpy
from ...training.loop_state.number_lists import as_list

Kind = Literal[
    "recheck",
    "gradients",
    "hyper-parameters",
    "random state",
    "data position",
    "tracked state",
    "buffers",
    "state",
    "weights",
    "printed",
    "numbers in a file",
    "file",
]

# Two starts of a script that trains the same way do not differ in these.
ESSENTIAL: tuple[Kind, ...] = ("gradients", "hyper-parameters", "random state", "data position", "buffers", "weights")


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the run that was killed and the one that was not.

    Attributes:
        kind: what differs.
        what: its name: a tensor, a path within a state, a file.
        detail: how it differs, in words.
        step: the step at which it shows first; None if it belongs to no step.
    """

    kind: Kind
    what: str
    detail: str = ""
    step: int | None = None

    def __str__(self) -> str:
        place = "" if self.step is None else f" at step {self.step}"
        return f"{self.kind}{place}: {self.what}" + (f" ({self.detail})" if self.detail else "")


def find_differences(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each difference between two decoded values, and what differs there."""
    a, b = as_list(a), as_list(b)
    if type(a) is not type(b):
        yield path, f"{_brief(b)} instead of {_brief(a)}"
    elif isinstance(a, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            inner = f"{path}.{key}" if path else str(key)
            if key in a and key in b:
                yield from find_differences(a[key], b[key], inner)
            else:
                yield inner, "missing" if key in a else "not there without a kill"
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            yield path, f"{len(b)} values instead of {len(a)}"
        else:
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                yield from find_differences(x, y, f"{path}[{i}]")
    elif isinstance(a, SparseArray):
        yield from find_differences((a.indices, a.values), (b.indices, b.values), path)
    elif isinstance(a, (Array, np.ndarray)):
        if a.shape != b.shape or _bytes_of(a) != _bytes_of(b):
            yield path, describe_arrays(a, b)
    elif isinstance(a, Extension):
        yield from find_differences((a.tag, a.value), (b.tag, b.value), path)
    elif not (a == b or (a != a and b != b)):
        yield path, f"{_brief(b)} instead of {_brief(a)}"


def find_difference(a: Any, b: Any, path: str = "") -> tuple[str, str] | None:
    """Return the first difference between two decoded values; None if they are equal."""
    return next(find_differences(a, b, path), None)


def describe_arrays(a: Any, b: Any) -> str:
    """Return in words how two arrays differ."""
    if tuple(a.shape) != tuple(b.shape):
        return f"shape {tuple(b.shape)} instead of {tuple(a.shape)}"
    try:
        x, y = (np.asarray(to_numpy(v) if isinstance(v, Array) else v).astype(np.float64) for v in (a, b))
    except (TypeError, ValueError, KeyError):
        return "other bytes"
    if x.size == 1:
        return f"{y.item():.9g} instead of {x.item():.9g}"
    apart = float(np.nanmax(np.abs(x - y))) if x.size else 0.0
    return f"up to {apart:.3g} apart"


def _bytes_of(array: Any) -> bytes:
    data = array.data if isinstance(array, Array) else np.ascontiguousarray(array).view(np.uint8)
    return bytes(np.ascontiguousarray(data).tobytes())


def _brief(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return f"other {len(value)} bytes"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
