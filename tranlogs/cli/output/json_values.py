"""Any value of the log as what JSON can say: arrays are described, numbers that JSON lacks become words."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from ...base.types import Array, Extension, SparseArray
from ...encoding.tree import to_numpy


def plain(value: Any) -> Any:
    """See the module."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (complex, Path)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": len(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, (Array, SparseArray, np.ndarray)):
        return _array(value)
    if isinstance(value, Extension):
        return {value.tag: plain(value.value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(value)


def _array(value: Array | SparseArray | np.ndarray[Any, Any]) -> Any:
    """A number for a scalar (a learning rate may be a tensor), else dtype and shape."""
    dtype = value.dtype if isinstance(value.dtype, str) else value.dtype.name
    if math.prod(value.shape) == 1 and not isinstance(value, SparseArray) and dtype in np.sctypeDict:
        return plain((to_numpy(value) if isinstance(value, Array) else value).item())
    return {"dtype": dtype, "shape": list(value.shape)}
