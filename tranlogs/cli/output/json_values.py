"""JSON output: values of the log as JSON can hold them.

An array becomes its dtype and shape, bytes become their number, and a float that JSON lacks (nan, inf) becomes a string.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import typer

from ...base.types import Array, Extension, SparseArray
from ...encoding.tree import to_numpy


def print_json(content: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(to_json(content), indent=2, allow_nan=False))


def to_json(value: Any) -> Any:
    """Return a value made of what JSON has: dicts, lists, strings, finite numbers, booleans and None."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (complex, Path)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": len(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json(item) for item in value), key=repr)
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, (Array, SparseArray, np.ndarray)):
        return _array(value)
    if isinstance(value, Extension):
        return {value.tag: to_json(value.value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(value)


def _array(value: Array | SparseArray | np.ndarray[Any, Any]) -> Any:
    """Return the number for a scalar, since a learning rate may be a tensor; else dtype and shape."""
    dtype = value.dtype if isinstance(value.dtype, str) else value.dtype.name
    if math.prod(value.shape) == 1 and not isinstance(value, SparseArray) and dtype in np.sctypeDict:
        return to_json((to_numpy(value) if isinstance(value, Array) else value).item())
    return {"dtype": dtype, "shape": list(value.shape)}
