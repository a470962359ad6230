"""The byte format of plain values: hyper-parameters, random states, the result of any `state_dict()`. It needs no pickle.

A value is MessagePack (https://msgpack.org) with the extension types below; text is UTF-8, in which lone surrogates may stand.
What a type holds besides bytes of its own is MessagePack again. Integers and floats are little-endian.

    1 tuple            array of the items
    2 set              array of the items, sorted by their encoding
    3 frozenset        the same
    4 OrderedDict      map
    5 Counter          map
    6 integer          two's complement, if it has more than 64 bits
    7 complex          two float64
    8 numpy scalar     length (u8) and name of its dtype, its bytes
    9 array            header, content in storage order
    10 array           out of line: header, index (u32) into the arrays that are stored outside of the tree
    11 sparse array    array of shape (a tuple), coalesced (bool), indices and values (each an array)
    12 extension       array of the integration's tag (str) and a value
    13 part            index (u32) of the part that has the value: a `Fixed` in the body of a boundary

An array's header: flag (u8: 1 = framework tensor, 2 = has strides), length (u8) and name of the dtype, rank (u8), shape (u64
each), strides (i64 each, if flagged). Only the exact types are accepted: a subclass could have behaviour that would be lost.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, cast

import msgpack

from ..base import lazy_numpy as np
from ..base.config import OUT_OF_LINE_BYTES_MIN, TREE_DEPTH_MAX
from ..base.errors import UnencodableState
from ..base.types import ITEMSIZE, AnyArray, Array, Bytes, Extension, SparseArray, dense, is_dense

Adapt = Callable[[Any], Any]  # turns a framework's value into an Array, SparseArray or Extension; returns other values
ReadFar = Callable[[int, AnyArray], AnyArray]

NUMPY_DTYPES = frozenset(name for name in ITEMSIZE if not name.startswith(("bfloat", "float8")) and name != "complex32")
_TUPLE, _SET, _FROZENSET, _ORDERED, _COUNTER, _INTEGER, _COMPLEX = range(1, 8)
_SCALAR, _ARRAY, _FAR, _SPARSE, _EXTENSION, _PART = range(8, 14)
_C128, _U32 = struct.Struct("<dd"), struct.Struct("<I")
_PACKER_BYTES = 1 << 12  # of the buffer of a packer, which grows
_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_NO_DATA = cast("Bytes", memoryview(b""))
_NATIVE = frozenset((type(None), bool, float, str, bytes, list, dict))  # MessagePack's own


class Fixed:
    """A value that rarely changes, at any place in a tree. `BodyEncoder` encodes the same object once."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class MalformedTree(ValueError):
    """Error of bytes that are not an encoded tree. The caller knows the file, and raises CorruptRecord instead."""


def encode(
    value: Any,
    *,
    path: str = "state",
    adapt: Adapt | None = None,
    out_of_line: list[AnyArray] | None = None,
    out_of_line_bytes_min: int = OUT_OF_LINE_BYTES_MIN,
    parts: list[Fixed] | None = None,
    is_checked: bool = False,
) -> bytes:
    """Encode a value.

    Args:
        path: name of the value in error messages.
        adapt: turns a framework's values into arrays and extensions.
        out_of_line: list to which arrays of `out_of_line_bytes_min` bytes or more are appended. The tree refers to them by
            index. If None, all arrays are stored in the tree.
        out_of_line_bytes_min: size from which on arrays are out of line.
        parts: list to which each `Fixed` below the value is appended. The tree refers to it by index. If None, they are all
            stored in the tree.
        is_checked: True if a value of this form has been encoded before. `bytearray`, which MessagePack takes for `bytes`, is
            not looked for then.

    Raises:
        UnencodableState: the value contains a value that cannot be stored; the message has the path of that value.
    """
    try:
        encoder = _free.pop()
    except IndexError:  # no check before: another thread may take the last one after it
        encoder = _Encoder()
    encoder.given, encoder.far, encoder.far_bytes_min, encoder.parts = adapt, out_of_line, out_of_line_bytes_min, parts
    if not is_checked:
        for _ in _walk(value, path, encoder.adapt):
            pass
    try:
        encoded: bytes = encoder.packer.pack(value)
    except (_Refused, ValueError, TypeError, OverflowError, RecursionError) as error:
        for _ in _walk(value, path, encoder.adapt):  # It raises the error that names the path.
            pass
        raise UnencodableState(path, value, f"cannot be stored: {error}") from error
    encoder.given = encoder.far = encoder.parts = None
    if encoder.adapted:
        encoder.adapted.clear()
    _free.append(encoder)
    return encoded


def find_arrays(value: Any, path: str, adapt: Adapt) -> Iterator[tuple[str, AnyArray]]:
    """Yield the arrays of a value with their paths.

    Raises:
        UnencodableState: the value contains a value that cannot be stored.
    """
    encoder = _Encoder()
    encoder.given = adapt
    yield from _walk(value, path, encoder.adapt)


def decode(
    data: bytes | memoryview,
    arrays: ReadFar | None = None,
    *,
    parts: Callable[[int], Any] | None = None,
    make_array: Callable[[AnyArray], Any] | None = None,
    make_extension: Callable[[Extension], Any] | None = None,
    has_data: bool = True,
) -> Any:
    """Decode a value.

    Args:
        arrays: returns an out-of-line array, given its index and an array of the same layout without data.
        parts: returns the decoded value of a part, given its index (default: `Extension("part", index)`).
        make_array: makes the framework's tensor of an array (default: returns numpy arrays as such, other arrays as `Array`).
        make_extension: makes the framework's value of an extension (default: returns the `Extension`).
        has_data: False for arrays without their bytes, to describe them; those in the tree have a `memoryview`.

    Raises:
        MalformedTree: the bytes are damaged.
    """
    decoder = _Decoder(
        arrays,
        parts or (lambda index: Extension("part", index)),
        make_array or (lambda array: to_numpy(array) if isinstance(array, Array) and not array.is_tensor else array),
        make_extension or (lambda extension: extension),
        has_data,
    )
    try:
        return decoder.unpack(data)
    except MalformedTree:
        raise
    except (ValueError, TypeError, OverflowError, IndexError, RecursionError, struct.error) as error:
        raise MalformedTree(str(error)) from None


class _Refused(Exception):
    """A value cannot be stored. `_walk` finds its path."""


class _Encoder:
    """Encodes one value after another, each with what was given for it. What is made for that is kept from one to the next.

    Attributes:
        packer: of the value itself. It cannot be used again before it is done, so what is inside has packers of its own.
        given: turns a framework's values into arrays and extensions.
        far: arrays of `far_bytes_min` bytes or more are appended to it; None if they are all stored in the tree.
        parts: each `Fixed` is appended to it; None if they are stored in the tree.
        adapted: what framework's values became, by id. It keeps the values alive.
    """

    def __init__(self) -> None:
        self.packer = _new_packer(self._default)
        self._packers = list[msgpack.Packer]()
        self.adapted = dict[int, tuple[Any, Any]]()
        self.given: Adapt | None = None
        self.far: list[AnyArray] | None = None
        self.far_bytes_min = 0
        self.parts: list[Fixed] | None = None

    def _pack(self, value: Any) -> bytes:
        """Return an encoded value that is inside of another one."""
        packer = self._packers.pop() if self._packers else _new_packer(self._default)
        packed: bytes = packer.pack(value)
        self._packers.append(packer)
        return packed

    def adapt(self, value: Any) -> Any:
        """Return what a framework's value becomes: an Array, SparseArray or Extension.

        Raises:
            _Refused: the value is none of these.
        """
        known = self.adapted.get(id(value))
        if known is None:
            adapted = self.given(value) if self.given is not None else value
            if adapted is value or not isinstance(adapted, (Array, SparseArray, Extension)):
                raise _Refused
            known = self.adapted[id(value)] = value, adapted
        return known[1]

    def _default(self, value: Any) -> Any:
        """Return the MessagePack form of a value that MessagePack does not know."""
        kind = type(value)
        if kind is tuple:
            return msgpack.ExtType(_TUPLE, self._pack(list(value)))
        if kind is Fixed:
            if self.parts is not None:
                self.parts.append(value)
                return msgpack.ExtType(_PART, _U32.pack(len(self.parts) - 1))
            return value.value if type(value.value) in _NATIVE else self._default(value.value)
        if kind is np.ndarray:
            return self._array(_from_numpy(value))
        if kind is OrderedDict or kind is Counter:
            return msgpack.ExtType(_ORDERED if kind is OrderedDict else _COUNTER, self._pack(dict(value)))
        if kind is set or kind is frozenset:
            return msgpack.ExtType(_SET if kind is set else _FROZENSET, self._set(value))
        if kind is int:
            return msgpack.ExtType(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        if kind is complex:
            return msgpack.ExtType(_COMPLEX, _C128.pack(value.real, value.imag))
        if kind is Array:
            return self._array(value)
        if kind is SparseArray:
            parts = [tuple(value.shape), value.is_coalesced, value.indices, value.values]
            return msgpack.ExtType(_SPARSE, self._pack(parts))
        if kind is Extension:
            return msgpack.ExtType(_EXTENSION, self._pack([value.tag, value.value]))
        if isinstance(value, np.generic):
            name = _from_numpy(np.asarray(value)).dtype.encode()
            return msgpack.ExtType(_SCALAR, bytes([len(name)]) + name + value.tobytes())
        return self._default(self.adapt(value))

    def _array(self, array: Array) -> msgpack.ExtType:
        head = array_header(array.dtype, tuple(array.shape), array.strides, array.is_tensor)
        if self.far is not None and array.nbytes >= self.far_bytes_min:
            self.far.append(array)
            return msgpack.ExtType(_FAR, head + _U32.pack(len(self.far) - 1))
        return msgpack.ExtType(_ARRAY, head + array.data.tobytes())

    def _set(self, value: set[Any] | frozenset[Any]) -> bytes:
        far, self.far = self.far, None  # the order of the items is not known yet
        try:
            items = sorted(map(self._pack, value))
        finally:
            self.far = far
        return bytes(msgpack.Packer(buf_size=_PACKER_BYTES).pack_array_header(len(items))) + b"".join(items)


_free: list[_Encoder] = []


def _new_packer(default: Callable[[Any], Any]) -> msgpack.Packer:
    return msgpack.Packer(default=default, strict_types=True, unicode_errors="surrogatepass", buf_size=_PACKER_BYTES)


@lru_cache(maxsize=1024)
def array_header(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, is_tensor: bool) -> bytes:
    """Return the header of an array."""
    name, rank = dtype.encode(), len(shape)
    flag = (1 if is_tensor else 0) | (2 if strides is not None else 0)
    head = bytes([flag, len(name)]) + name + bytes([rank])
    return head + struct.pack(f"<{rank}Q", *shape) + struct.pack(f"<{len(strides or ())}q", *(strides or ()))


def _from_numpy(values: np.ndarray[Any, Any]) -> Array:
    if values.dtype.name not in NUMPY_DTYPES or not values.dtype.isnative:
        raise _Refused
    return dense(values)


def _walk(
    value: Any, path: str, adapt: Adapt, above: tuple[int, ...] = (), is_in_set: bool = False
) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of a value that may be out of line, with their paths, in the order in which they are encoded.

    Raises:
        UnencodableState: the value contains itself, is nested too deeply, or contains what cannot be stored.
    """
    kind = type(value)
    if kind in _PLAIN:
        return
    if kind is Fixed:
        yield from _walk(value.value, path, adapt, above, is_in_set)
        return
    items: Any
    if kind is dict or kind is OrderedDict or kind is Counter:
        items = ((place, item) for key, one in value.items() for place, item in ((".keys()", key), (f"[{key!r}]", one)))
    elif kind is list or kind is tuple:
        items = ((f"[{number}]", one) for number, one in enumerate(value))
    elif kind is set or kind is frozenset:
        items, is_in_set = (("{}", one) for one in value), True
    elif kind is Extension:
        items = (("", value.value),)
    elif kind is SparseArray:
        items = (("#indices", value.indices), ("#values", value.values))
    else:
        try:
            if kind is np.ndarray or isinstance(value, np.generic):
                value = _from_numpy(np.asarray(value))
                kind = Array if kind is np.ndarray else kind
            elif kind is not Array:
                yield from _walk(adapt(value), path, adapt, above, is_in_set)
                return
        except _Refused:
            dtype = f" (dtype {value.dtype})" if kind is np.ndarray or isinstance(value, np.generic) else ""
            raise UnencodableState(path + dtype, value) from None
        if kind is Array and not is_in_set:
            yield path, value
        return
    if id(value) in above:
        raise UnencodableState(path, value, "contains itself")
    if len(above) >= TREE_DEPTH_MAX:
        raise UnencodableState(path, None, f"is nested deeper than {TREE_DEPTH_MAX} containers")
    inner = (*above, id(value))
    for place, item in items:
        if type(item) not in _PLAIN:
            yield from _walk(item, path + place, adapt, inner, is_in_set)


class _Decoder:
    """Decodes one value. A length that is larger than the bytes that are given is refused before anything is allocated."""

    def __init__(
        self,
        arrays: ReadFar | None,
        parts: Callable[[int], Any],
        make_array: Callable[[AnyArray], Any],
        make_extension: Callable[[Extension], Any],
        has_data: bool,
    ) -> None:
        self._arrays, self._parts, self._make_array, self._make_extension = arrays, parts, make_array, make_extension
        self._has_data = has_data

    def unpack(self, data: bytes | memoryview, hook: Callable[[int, bytes], Any] | None = None) -> Any:
        """Return the decoded value."""
        return msgpack.unpackb(data, ext_hook=hook or self._extension, strict_map_key=False, unicode_errors="surrogatepass")

    def _extension(self, code: int, data: bytes) -> Any:
        if code == _TUPLE:
            return tuple(self._items(data))
        if code in (_ARRAY, _FAR):
            return self._make_array(self._array(code, data))
        if code in (_ORDERED, _COUNTER):
            found = self.unpack(data)
            if type(found) is not dict:
                raise MalformedTree("an ordered dict is no map")
            return OrderedDict(found) if code == _ORDERED else Counter(found)
        if code in (_SET, _FROZENSET):
            return set(self._items(data)) if code == _SET else frozenset(self._items(data))
        if code == _INTEGER:
            return int.from_bytes(data, "little", signed=True)
        if code == _COMPLEX:
            return complex(*_C128.unpack(data))
        if code == _SCALAR:
            name = data[1 : 1 + data[0]].decode()
            if name not in NUMPY_DTYPES or len(data) != 1 + len(name) + ITEMSIZE[name]:
                raise MalformedTree(f"damaged number of the dtype {name!r}")
            return np.frombuffer(data, name, offset=1 + len(name))[0]
        if code == _SPARSE:
            return self._make_array(self._sparse(data))
        if code == _EXTENSION:
            tag, value = self._items(data)
            if type(tag) is not str:
                raise MalformedTree(f"the tag of an extension is {tag!r}")
            return self._make_extension(Extension(tag, value))
        if code == _PART:
            return self._parts(*_U32.unpack(data))
        raise MalformedTree(f"unknown type {code}")

    def _items(self, data: bytes) -> list[Any]:
        found = self.unpack(data)
        if type(found) is not list:
            raise MalformedTree("the items of a container are no array")
        return found

    def _sparse(self, data: bytes) -> SparseArray:
        shape, is_coalesced, indices, values = self.unpack(data, self._raw)
        if not (isinstance(shape, tuple) and all(type(size) is int for size in shape) and type(is_coalesced) is bool):
            raise MalformedTree(f"invalid shape {shape!r} of a sparse array")
        if not (type(indices) is Array and type(values) is Array):
            raise MalformedTree("a sparse array has no arrays")
        return SparseArray(shape, indices, values, is_coalesced)

    def _raw(self, code: int, data: bytes) -> Any:
        return self._array(code, data) if code in (_ARRAY, _FAR) else self._extension(code, data)

    def _array(self, code: int, data: bytes) -> AnyArray:
        flag, length = data[0], data[1]
        dtype, at = data[2 : 2 + length].decode(), 2 + length
        if dtype not in ITEMSIZE:
            raise MalformedTree(f"unknown dtype {dtype!r}")
        rank = data[at]
        shape = struct.unpack_from(f"<{rank}Q", data, at + 1)
        at += 1 + 8 * rank
        strides = struct.unpack_from(f"<{rank}q", data, at) if flag & 2 else None
        at += 8 * rank if flag & 2 else 0
        if math.prod(shape) * ITEMSIZE[dtype] > 1 << 48:
            raise MalformedTree(f"the shape {shape} of an array is too large")
        if strides is not None and not is_dense(shape, strides):
            raise MalformedTree(f"strides {strides} do not fit to shape {shape}")
        array = Array(dtype, (0,), _NO_DATA, strides, bool(flag & 1))
        array.shape = shape  # The content follows, or is out of line.
        if code == _ARRAY:
            if len(data) - at != math.prod(shape) * ITEMSIZE[dtype]:
                raise MalformedTree(f"{len(data) - at} bytes for an array {dtype}{list(shape)}")
            if not self._has_data:
                array.data = cast("Bytes", memoryview(data)[at:])
                return array
            array.data = np.frombuffer(data, np.uint8, offset=at) if len(data) > at else np.empty(0, np.uint8)
            return array
        if not self._has_data:
            return array
        if self._arrays is None:
            raise MalformedTree("no arrays out of line are given")
        (index,) = _U32.unpack_from(data, at)
        found = self._arrays(index, array)
        if not isinstance(found, Array) or (found.dtype, found.shape) != (array.dtype, array.shape):
            raise MalformedTree(f"the array out of line is not {array.dtype}{list(array.shape)}")
        return found


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """Return an array as a numpy array in C order, which can be written to: it may become a part of the user's state again.

    The dtypes bfloat16 and float8 become unsigned integers of the same size.
    """
    name = array.dtype if array.dtype in NUMPY_DTYPES else f"uint{8 * ITEMSIZE[array.dtype]}"
    flat = array.data.reshape(-1).copy().view(np.dtype(name))
    if array.strides is None:
        return flat.reshape(array.shape)
    return np.lib.stride_tricks.as_strided(flat, array.shape, [s * flat.itemsize for s in array.strides]).copy()
