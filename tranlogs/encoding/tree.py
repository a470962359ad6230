"""Plain values <-> bytes, without pickle: hyper-parameters, RNG states, anything with a `state_dict()`.

A value is one tag byte and its content; integers are little-endian, lengths are u32, strings UTF-8:

    N T F        None, True, False
    i / I        int in 64 bits signed / any int: length, two's complement
    f c          float64, complex128 (8 and 16 bytes)
    s b          str, bytes: length, content
    l t          list, tuple: count, values
    d o C        dict, OrderedDict, Counter: count, then key and value each
    S Z          set, frozenset: count, values (sorted by their encoding)
    g            numpy scalar: dtype (str), content
    a            array: header, content in storage order
    A            array out of line: header, index (u32) into the frames that go with this tree
    p            sparse COO tensor: shape (tuple), coalesced (bool), then indices and values, each an `a` or `A` array
    x            extension of an integration: tag (str), value

An array's header: flag byte (1 = framework tensor, 2 = has strides), dtype (str), rank (u8), shape (u64 each), strides
(i64 each, if flagged). Sizes stay the same when a number changes, so two states of one object can be compared byte by
byte (see `delta`). Only exact types are taken: a subclass could carry behaviour that would be lost.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.config import META_BYTES_MAX, OUT_OF_LINE_BYTES_MIN, TREE_DEPTH_MAX
from ..base.errors import UnencodableState
from ..base.types import ITEMSIZE, AnyArray, Array, Extension, SparseArray, dense, is_dense

Adapt = Callable[[Any], Any]  # a framework's value -> Array, SparseArray, Extension, or the value itself

_I64, _U32, _F64, _C128 = struct.Struct("<q"), struct.Struct("<I"), struct.Struct("<d"), struct.Struct("<dd")


class Fixed:
    """A value that does not change, anywhere in a tree. Its bytes are kept when it is first encoded.

    Attributes:
        value: the value.
        encoded: its bytes; None before the first time, and where arrays of it lie out of line.
    """

    __slots__ = ("encoded", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.encoded: bytes | None = None


class MalformedTree(ValueError):
    """The bytes are no tree. The caller knows the file and turns this into a CorruptRecord."""


def encode(
    value: Any,
    *,
    path: str = "state",
    adapt: Adapt | None = None,
    out_of_line: list[tuple[str, AnyArray]] | None = None,
    out_of_line_bytes_min: int = OUT_OF_LINE_BYTES_MIN,
) -> bytes:
    """Encode a value.

    Args:
        value: the value; see the module for what is taken.
        path: how error messages name it.
        adapt: turns a framework's values into arrays and extensions.
        out_of_line: where given, arrays from `out_of_line_bytes_min` bytes on are appended here with their path and
            referred to by index.

    Raises:
        UnencodableState: something in it cannot be stored; the message has its path.
    """
    parts: list[bytes] = []
    _Encoder(parts, adapt, out_of_line, out_of_line_bytes_min, path).write(value)
    return b"".join(parts)


def decode(
    data: bytes | memoryview,
    arrays: Callable[[int, AnyArray], AnyArray] | None = None,
    *,
    make_array: Callable[[AnyArray], Any] | None = None,
    make_extension: Callable[[Extension], Any] | None = None,
) -> Any:
    """Decode a value.

    Args:
        data: what `encode` returned.
        arrays: gives the content of out-of-line arrays by index; it gets an array of the right layout without data.
        make_array: makes the framework's tensor of an array (default: the `Array` itself, numpy arrays as numpy).
        make_extension: makes the framework's value of an extension (default: the `Extension` itself).

    Raises:
        MalformedTree: the bytes are damaged.
    """
    reader = _Decoder(bytes(data), arrays, make_array, make_extension)
    try:
        value = reader.read(0)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError, TypeError, ValueError) as error:
        raise MalformedTree(str(error)) from None
    if reader.at != len(reader.data):
        raise MalformedTree(f"{len(reader.data) - reader.at} bytes too many")
    return value


class _Encoder:
    """Writes values one after another. The place of a value is kept as a stack, and becomes words only when asked for."""

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
        self._stack: list[Any] = []  # keys and indices from the root to the value that is being written

    def write(self, value: Any) -> None:
        """Write one value."""
        writer = _WRITERS.get(type(value))
        if writer is not None:
            writer(self, value)
        elif isinstance(value, np.generic):
            name = _from_numpy(np.asarray(value), self).dtype.encode()
            self.parts.append(b"g" + _U32.pack(len(name)) + name + value.tobytes())
        else:
            self._adapt(value)

    def path(self) -> str:
        """Name the place of the value that is being written."""
        return self._root + "".join(part if type(part) is _Suffix else f"[{part!r}]" for part in self._stack)

    def _enter(self, part: Any) -> None:
        self._stack.append(part)
        if len(self._stack) > TREE_DEPTH_MAX:
            raise UnencodableState(f"{self.path()} (nested deeper than {TREE_DEPTH_MAX})", None)

    def _none(self, value: None) -> None:
        self.parts.append(b"N")

    def _bool(self, value: bool) -> None:
        self.parts.append(b"T" if value else b"F")

    def _int(self, value: int) -> None:
        if -(1 << 63) <= value < 1 << 63:
            self.parts.append(b"i" + _I64.pack(value))
        else:
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.parts.append(b"I" + _U32.pack(len(raw)) + raw)

    def _float(self, value: float) -> None:
        self.parts.append(b"f" + _F64.pack(value))

    def _complex(self, value: complex) -> None:
        self.parts.append(b"c" + _C128.pack(value.real, value.imag))

    def _str(self, value: str) -> None:
        raw = value.encode("utf-8", "surrogatepass")
        self.parts.append(b"s" + _U32.pack(len(raw)) + raw)

    def _bytes(self, value: bytes) -> None:
        self.parts.append(b"b" + _U32.pack(len(value)) + value)

    def _list(self, value: list[Any]) -> None:
        self.parts.append(b"l" + _U32.pack(len(value)))
        self._items(value)

    def _tuple(self, value: tuple[Any, ...]) -> None:
        self.parts.append(b"t" + _U32.pack(len(value)))
        self._items(value)

    def _items(self, items: Any) -> None:
        self._enter(None)
        stack, write = self._stack, self.write
        for i, item in enumerate(items):
            stack[-1] = i
            write(item)
        stack.pop()

    def _dict(self, value: dict[Any, Any]) -> None:
        self.parts.append(_DICTS[type(value)] + _U32.pack(len(value)))
        self._enter(None)
        stack, write = self._stack, self.write
        for key, item in value.items():
            if type(key) is str:
                self._str(key)
            else:
                stack[-1] = _KEYS
                write(key)
            stack[-1] = key
            write(item)
        stack.pop()

    def _set(self, value: set[Any] | frozenset[Any]) -> None:
        self.parts.append((b"S" if type(value) is set else b"Z") + _U32.pack(len(value)))
        self._enter(_ITEMS)
        self.parts.extend(sorted(map(self._apart, value)))
        self._stack.pop()

    def _apart(self, item: Any) -> bytes:
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
            if len(self.out_of_line or ()) > far:  # it refers to them by index
                self.parts.append(blob)
                return
            value.encoded = blob
        self.parts.append(value.encoded)

    def _extension(self, value: Extension) -> None:
        tag = value.tag.encode()
        self.parts.append(b"x" + _U32.pack(len(tag)) + tag)
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
            self.parts.append(b"A" + _array_header(array) + _U32.pack(len(self.out_of_line)))
            self.out_of_line.append((self.path(), array))
        else:
            self.parts.append(b"a" + _array_header(array) + array.data.tobytes())

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
    """A part of a path that is written as it is."""

    __slots__ = ()


_KEYS, _ITEMS = _Suffix(".keys()"), _Suffix("{}")
_DICTS: dict[type, bytes] = {dict: b"d", OrderedDict: b"o", Counter: b"C"}
_WRITERS: dict[type, Callable[[_Encoder, Any], None]] = {
    type(None): _Encoder._none,
    bool: _Encoder._bool,
    int: _Encoder._int,
    float: _Encoder._float,
    complex: _Encoder._complex,
    str: _Encoder._str,
    bytes: _Encoder._bytes,
    list: _Encoder._list,
    tuple: _Encoder._tuple,
    dict: _Encoder._dict,
    OrderedDict: _Encoder._dict,
    Counter: _Encoder._dict,
    set: _Encoder._set,
    frozenset: _Encoder._set,
    np.ndarray: _Encoder._numpy,
    Array: _Encoder._array,
    SparseArray: _Encoder._sparse,
    Extension: _Encoder._extension,
    Fixed: _Encoder._fixed,
}


def _from_numpy(values: np.ndarray[Any, Any], encoder: _Encoder) -> Array:
    if values.dtype.name not in _NUMPY_DTYPES or not values.dtype.isnative:
        raise UnencodableState(f"{encoder.path()} (dtype {values.dtype})", values)
    return dense(values)


def _array_header(array: Array) -> bytes:
    name, rank = array.dtype.encode(), len(array.shape)
    flag = (1 if array.is_tensor else 0) | (2 if array.strides is not None else 0)
    head = bytes([flag]) + _U32.pack(len(name)) + name + bytes([rank])
    return head + struct.pack(f"<{rank}Q", *array.shape) + struct.pack(f"<{len(array.strides or ())}q", *(array.strides or ()))


class _Decoder:
    def __init__(
        self,
        data: bytes,
        arrays: Callable[[int, AnyArray], AnyArray] | None,
        make_array: Callable[[AnyArray], Any] | None,
        make_extension: Callable[[Extension], Any] | None,
    ) -> None:
        self.data, self.at, self.arrays = data, 0, arrays
        self.make_array, self.make_extension = make_array or _default_array, make_extension

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        start, end = self.at, self.at + count
        if end > len(self.data):
            raise MalformedTree(f"{count} bytes wanted at {start} of {len(self.data)}")
        self.at = end
        return self.data[start:end]

    def length(self) -> int:
        """Return the next number of 32 bits."""
        at = self.at
        (n,) = _U32.unpack_from(self.data, at)
        self.at = at + 4
        return int(n)

    def text(self) -> str:
        """Return the next string."""
        return self.take(self.length()).decode("utf-8", "surrogatepass")

    def read(self, depth: int) -> Any:
        """Return the next value."""
        if depth > TREE_DEPTH_MAX + 1:
            raise MalformedTree("nested too deep")
        at = self.at
        tag = self.data[at]
        self.at = at + 1
        method = _READERS.get(tag)
        if method is None:
            if tag in _SIMPLE:
                return _SIMPLE[tag]
            raise MalformedTree(f"unknown tag {bytes([tag])!r} at {at}")
        return method(self, depth + 1)

    def _counted(self) -> int:
        count = self.length()
        if count > len(self.data) - self.at:  # every item has at least a tag
            raise MalformedTree(f"{count} items in {len(self.data) - self.at} bytes")
        return count

    def _int(self, depth: int) -> int:
        at = self.at
        self.at = at + 8
        return int(_I64.unpack_from(self.data, at)[0])

    def _bigint(self, depth: int) -> int:
        return int.from_bytes(self.take(self.length()), "little", signed=True)

    def _float(self, depth: int) -> float:
        at = self.at
        self.at = at + 8
        return float(_F64.unpack_from(self.data, at)[0])

    def _complex(self, depth: int) -> complex:
        return complex(*_C128.unpack(self.take(16)))

    def _str(self, depth: int) -> str:
        return self.text()

    def _bytes(self, depth: int) -> bytes:
        return self.take(self.length())

    def _list(self, depth: int) -> list[Any]:
        return [self.read(depth) for _ in range(self._counted())]

    def _tuple(self, depth: int) -> tuple[Any, ...]:
        return tuple([self.read(depth) for _ in range(self._counted())])

    def _set(self, depth: int) -> set[Any]:
        return set(self._list(depth))

    def _frozenset(self, depth: int) -> frozenset[Any]:
        return frozenset(self._list(depth))

    def _dict(self, depth: int) -> dict[Any, Any]:
        return {self.read(depth): self.read(depth) for _ in range(self._counted())}

    def _ordered(self, depth: int) -> OrderedDict[Any, Any]:
        return OrderedDict(self._dict(depth))

    def _counter(self, depth: int) -> Counter[Any]:
        return Counter(self._dict(depth))

    def _scalar(self, depth: int) -> Any:
        name = self.text()
        if name not in _NUMPY_DTYPES:
            raise MalformedTree(f"unknown dtype {name!r}")
        return np.frombuffer(self.take(ITEMSIZE[name]), name)[0]

    def _header(self) -> Array:
        flag, dtype, rank = self.take(1)[0], self.text(), 0
        if dtype not in ITEMSIZE:
            raise MalformedTree(f"unknown dtype {dtype!r}")
        rank = self.take(1)[0]
        shape = struct.unpack(f"<{rank}Q", self.take(8 * rank))
        strides = struct.unpack(f"<{rank}q", self.take(8 * rank)) if flag & 2 else None
        if math.prod(shape) * ITEMSIZE[dtype] > 1 << 48:
            raise MalformedTree(f"an array of shape {shape}")
        if strides is not None and not is_dense(shape, strides):
            raise MalformedTree(f"strides {strides} for shape {shape}")
        array = Array(dtype, (0,), np.empty(0, np.uint8), strides, bool(flag & 1))
        array.shape = shape  # the data follows, here or out of line
        return array

    def _raw_array(self, tag: bytes) -> Array:
        array = self._header()
        if tag == b"a":
            array.data = np.frombuffer(self.take(math.prod(array.shape) * ITEMSIZE[array.dtype]), np.uint8)
            return array
        if tag != b"A" or self.arrays is None:
            raise MalformedTree("an array out of line, but none were given" if tag == b"A" else f"{tag!r} is no array")
        found = self.arrays(self.length(), array)
        if not isinstance(found, Array) or (found.dtype, found.shape) != (array.dtype, array.shape):
            raise MalformedTree(f"the array out of line is no {array.dtype}{list(array.shape)}")
        return found

    def _array(self, depth: int) -> Any:
        return self.make_array(self._raw_array(b"a"))

    def _far_array(self, depth: int) -> Any:
        return self.make_array(self._raw_array(b"A"))

    def _sparse(self, depth: int) -> Any:
        shape, coalesced = self.read(depth), self.read(depth)
        indices = self._raw_array(self.take(1))
        values = self._raw_array(self.take(1))
        if not (isinstance(shape, tuple) and all(type(size) is int for size in shape) and type(coalesced) is bool):
            raise MalformedTree(f"a sparse array of shape {shape!r}")
        return self.make_array(SparseArray(shape, indices, values, coalesced))

    def _extension(self, depth: int) -> Any:
        extension = Extension(self.text(), self.read(depth))
        return extension if self.make_extension is None else self.make_extension(extension)


_NUMPY_DTYPES = frozenset(name for name in ITEMSIZE if name in np.sctypeDict)
_SIMPLE: dict[int, Any] = {ord("N"): None, ord("T"): True, ord("F"): False}
_READERS: dict[int, Callable[[_Decoder, int], Any]] = {
    ord("i"): _Decoder._int,
    ord("I"): _Decoder._bigint,
    ord("f"): _Decoder._float,
    ord("c"): _Decoder._complex,
    ord("s"): _Decoder._str,
    ord("b"): _Decoder._bytes,
    ord("l"): _Decoder._list,
    ord("t"): _Decoder._tuple,
    ord("S"): _Decoder._set,
    ord("Z"): _Decoder._frozenset,
    ord("d"): _Decoder._dict,
    ord("o"): _Decoder._ordered,
    ord("C"): _Decoder._counter,
    ord("g"): _Decoder._scalar,
    ord("a"): _Decoder._array,
    ord("A"): _Decoder._far_array,
    ord("p"): _Decoder._sparse,
    ord("x"): _Decoder._extension,
}


def _default_array(array: AnyArray) -> Any:
    if isinstance(array, Array) and not array.is_tensor:
        return to_numpy(array)
    return array


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """A numpy array (C order) of an `Array`; bfloat16 and float8 come as unsigned integers of their size."""
    name = array.dtype if array.dtype in _NUMPY_DTYPES else f"uint{8 * ITEMSIZE[array.dtype]}"
    flat = np.frombuffer(array.data.tobytes(), np.dtype(name))
    if array.strides is None:
        return flat.reshape(array.shape)
    return np.lib.stride_tricks.as_strided(flat, array.shape, [s * flat.itemsize for s in array.strides]).copy()


assert META_BYTES_MAX < 1 << 32, "lengths are u32"
