"""Numpy views of a backend's values <-> the core's arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tranlogs.base.types import AnyArray, Array, Bytes
from tranlogs.records import to_numpy

Values = npt.NDArray[Any]


def to_array(values: Values) -> Array:
    """Return a view of C-contiguous values (else of a copy), whatever their dtype."""
    return Array(values.dtype.name, values.shape, flat_bytes(values))


def flat_bytes(values: Values) -> Bytes:
    """Return a view of C-contiguous values (else of a copy) as bytes."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def from_array(array: AnyArray) -> Values:
    """Return a copy of the values of an array."""
    assert isinstance(array, Array)
    values = to_numpy(array)
    return values if values.dtype.name == array.dtype else values.view(np.dtype(getattr(ml_dtypes, array.dtype)))


def adapt(value: Any) -> Any:
    """Convert numpy arrays of dtypes that numpy itself does not have, for `tree.encode`."""
    return to_array(value) if isinstance(value, np.ndarray) else value


def same_bits(a: Values, b: Values) -> bool:
    """Return True if two values are equal to the bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
