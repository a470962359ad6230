"""The encoder of trees."""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..base.config import META_BYTES_MAX, TREE_DEPTH_MAX
from ..base.errors import UnencodableState
from ..base.types import AnyArray, Array, Extension, SparseArray, dense
from .tree_values import C128, F64, I64, NUMPY_DTYPES, U32, Adapt, Fixed

assert META_BYTES_MAX < 1 << 32, "lengths are u32"


class TooDeep(UnencodableState):
    """A value is nested too deeply, or contains itself."""


class Encoder:
    """Encodes values one after another. It keeps the path of the current value as a stack, and formats it only for errors.

    Attributes:
        parts: the encoded bytes, in pieces.
        adapt: turns a framework's values into arrays and extensions.
        out_of_line: arrays that are out of line, with their paths; None if all arrays are stored in the tree.
        out_of_line_bytes_min: size from which on arrays are out of line.
    """

    def __init__(
        self,
        parts: list[bytes],
        adapt: Adapt | None,
        out_of_line: list[tuple[str, AnyArray]] | None,
        out_of_line_bytes_min: int,
        path: str,
    ) -> None:
        self.parts, self.adapt, self.out_of_line = parts, adapt, out_of_line
        self.out_of_line_bytes_min = out_of_line_bytes_min
        self._root = path
        self._stack: list[Any] = []  # keys and indices from the root to the current value

    def write(self, value: Any) -> None:
        """Encode one value."""
        kind = type(value)
        if (leaf := _LEAVES.get(kind)) is not None:
            self.parts.append(leaf(value))
        elif (writer := _WRITERS.get(kind)) is not None:
            writer(self, value)
        elif isinstance(value, np.generic):
            name = _from_numpy(np.asarray(value), self).dtype.encode()
            self.parts.append(b"g" + U32.pack(len(name)) + name + value.tobytes())
        else:
            self._adapt(value)

    def path(self) -> str:
        """Return the path of the current value."""
        return self._root + "".join(part if type(part) is _Suffix else f"[{part!r}]" for part in self._stack)

    def _enter(self, part: Any) -> None:
        self._stack.append(part)
        if len(self._stack) > TREE_DEPTH_MAX:
            raise TooDeep(self.path(), None, f"is nested deeper than {TREE_DEPTH_MAX} containers")

    def _list(self, value: list[Any]) -> None:
        self.parts.append(b"l" + U32.pack(len(value)))
        self._items(value)

    def _tuple(self, value: tuple[Any, ...]) -> None:
        self.parts.append(b"t" + U32.pack(len(value)))
        self._items(value)

    def _items(self, items: Any) -> None:
        self._enter(None)
        stack, write, add = self._stack, self.write, self.parts.append
        for i, item in enumerate(items):
            if (leaf := _LEAVES.get(type(item))) is not None:
                add(leaf(item))
            else:
                stack[-1] = i
                write(item)
        stack.pop()

    def _dict(self, value: dict[Any, Any]) -> None:
        self.parts.append(_DICTS[type(value)] + U32.pack(len(value)))
        self._enter(None)
        stack, write, add = self._stack, self.write, self.parts.append
        for key, item in value.items():
            if type(key) is str:
                add(_key(key))
            else:
                stack[-1] = _KEYS
                write(key)
            if (leaf := _LEAVES.get(type(item))) is not None:
                add(leaf(item))
            else:
                stack[-1] = key
                write(item)
        stack.pop()

    def _set(self, value: set[Any] | frozenset[Any]) -> None:
        self.parts.append((b"S" if type(value) is set else b"Z") + U32.pack(len(value)))
        self._enter(_ITEMS)
        self.parts.extend(sorted(map(self._encode_item, value)))
        self._stack.pop()

    def _encode_item(self, item: Any) -> bytes:
        outer, self.parts, far, self.out_of_line = self.parts, [], self.out_of_line, None
        try:
            self.write(item)
            return b"".join(self.parts)
        finally:
            self.parts, self.out_of_line = outer, far

    def _fixed(self, value: Fixed) -> None:
        if value.encoded is None:
            outer, self.parts, far = self.parts, [], len(self.out_of_line or ())
            try:
                self.write(value.value)
                blob = b"".join(self.parts)
            finally:
                self.parts = outer
            if len(self.out_of_line or ()) > far:  # The bytes hold indices of arrays of this tree, and fit to no other tree.
                self.parts.append(blob)
                return
            value.encoded = blob
        self.parts.append(value.encoded)

    def _extension(self, value: Extension) -> None:
        tag = value.tag.encode()
        self.parts.append(b"x" + U32.pack(len(tag)) + tag)
        self._enter(_Suffix(""))
        self.write(value.value)
        self._stack.pop()

    def _adapt(self, value: Any) -> None:
        adapted = self.adapt(value) if self.adapt is not None else value
        if adapted is value or not isinstance(adapted, (Array, SparseArray, Extension)):
            raise UnencodableState(self.path(), value)
        self.write(adapted)

    def _numpy(self, value: np.ndarray[Any, Any]) -> None:
        self._array(_from_numpy(value, self))

    def _array(self, array: Array) -> None:
        if self.out_of_line is not None and array.nbytes >= self.out_of_line_bytes_min:
            self.parts.append(b"A" + array_header(array) + U32.pack(len(self.out_of_line)))
            self.out_of_line.append((self.path(), array))
        else:
            self.parts.append(b"a" + array_header(array) + array.data.tobytes())

    def _sparse(self, sparse: SparseArray) -> None:
        self.parts.append(b"p")
        self.write(tuple(sparse.shape))
        self.write(sparse.is_coalesced)
        self._enter(_Suffix("#indices"))
        self._array(sparse.indices)
        self._stack[-1] = _Suffix("#values")
        self._array(sparse.values)
        self._stack.pop()


class _Suffix(str):
    """A part of a path that is shown as it is, without brackets and quotes."""

    __slots__ = ()


def _none(value: None) -> bytes:
    return b"N"


def _bool(value: bool) -> bytes:
    return b"T" if value else b"F"


def _int(value: int) -> bytes:
    if -(1 << 63) <= value < 1 << 63:
        return b"i" + I64.pack(value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"I" + U32.pack(len(raw)) + raw


def _float(value: float) -> bytes:
    return b"f" + F64.pack(value)


def _complex(value: complex) -> bytes:
    return b"c" + C128.pack(value.real, value.imag)


def _str(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"s" + U32.pack(len(raw)) + raw


def _bytes(value: bytes) -> bytes:
    return b"b" + U32.pack(len(value)) + value


_key = lru_cache(4096)(_str)  # the same keys stand in each boundary
_LEAVES: dict[type, Callable[[Any], bytes]] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float,
    complex: _complex,
    str: _str,
    bytes: _bytes,
}
_KEYS, _ITEMS = _Suffix(".keys()"), _Suffix("{}")
_DICTS: dict[type, bytes] = {dict: b"d", OrderedDict: b"o", Counter: b"C"}
_WRITERS: dict[type, Callable[[Encoder, Any], None]] = {
    list: Encoder._list,
    tuple: Encoder._tuple,
    dict: Encoder._dict,
    OrderedDict: Encoder._dict,
    Counter: Encoder._dict,
    set: Encoder._set,
    frozenset: Encoder._set,
    np.ndarray: Encoder._numpy,
    Array: Encoder._array,
    SparseArray: Encoder._sparse,
    Extension: Encoder._extension,
    Fixed: Encoder._fixed,
}


def _from_numpy(values: np.ndarray[Any, Any], encoder: Encoder) -> Array:
    if values.dtype.name not in NUMPY_DTYPES or not values.dtype.isnative:
        raise UnencodableState(f"{encoder.path()} (dtype {values.dtype})", values)
    return dense(values)


def array_header(array: Array) -> bytes:
    """Return the header of an array: flag, dtype, rank, shape and strides."""
    name, rank = array.dtype.encode(), len(array.shape)
    flag = (1 if array.is_tensor else 0) | (2 if array.strides is not None else 0)
    head = bytes([flag]) + U32.pack(len(name)) + name + bytes([rank])
    return head + struct.pack(f"<{rank}Q", *array.shape) + struct.pack(f"<{len(array.strides or ())}q", *(array.strides or ()))


def find_cycle(value: Any, path: str) -> str | None:
    """Return the path of the first container in a value that contains itself."""
    return _find_cycle(value, path, set())


def _find_cycle(value: Any, path: str, above: set[int]) -> str | None:
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return None
    if id(value) in above:
        return path
    above.add(id(value))
    for key, item in items:
        if (found := _find_cycle(item, f"{path}[{key!r}]", above)) is not None:
            return found
    above.discard(id(value))
    return None
