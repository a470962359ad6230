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

from ..config import META_BYTES_MAX, OUT_OF_LINE_BYTES_MIN, TREE_DEPTH_MAX
from ..errors import UnencodableState
from ..types import ITEMSIZE, AnyArray, Array, Extension, SparseArray, dense, is_dense

Adapt = Callable[[Any], Any]  # a framework's value -> Array, SparseArray, Extension, or the value itself

_I64, _U32, _F64, _C128 = struct.Struct("<q"), struct.Struct("<I"), struct.Struct("<d"), struct.Struct("<dd")


class Fixed:
    """A value that does not change. A boundary that is given the same `Fixed` as the one before it need not encode it again."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


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
    _Encoder(parts, adapt, out_of_line, out_of_line_bytes_min).write(value, path, 0)
    return b"".join(parts)


def decode(data: bytes | memoryview, arrays: Callable[[int, AnyArray], AnyArray] | None = None, *,
           make_array: Callable[[AnyArray], Any] | None = None,
           make_extension: Callable[[Extension], Any] | None = None) -> Any:  # fmt: skip
    """Decode a value.

    Args:
        data: what `encode` returned.
        arrays: gives the content of out-of-line arrays by index; it gets an array of the right layout without data.
        make_array: makes the framework's tensor of an array (default: the `Array` itself, numpy arrays as numpy).
        make_extension: makes the framework's value of an extension (default: the `Extension` itself).

    Raises:
        MalformedTree: the bytes are damaged.
    """
    reader = _Decoder(memoryview(data).cast("B"), arrays, make_array, make_extension)
    try:
        value = reader.read(0)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError, TypeError, ValueError) as error:
        raise MalformedTree(str(error)) from None
    if reader.at != len(reader.data):
        raise MalformedTree(f"{len(reader.data) - reader.at} bytes too many")
    return value


class _Encoder:
    def __init__(self, parts: list[bytes], adapt: Adapt | None, out_of_line: list[tuple[str, AnyArray]] | None,
                 out_of_line_bytes_min: int) -> None:  # fmt: skip
        self.parts, self.adapt, self.out_of_line = parts, adapt, out_of_line
        self.out_of_line_bytes_min = out_of_line_bytes_min

    def write(self, value: Any, path: str, depth: int) -> None:
        if depth > TREE_DEPTH_MAX:
            raise UnencodableState(f"{path} (nested deeper than {TREE_DEPTH_MAX})", value)
        put, kind = self.parts.append, type(value)
        if value is None:
            put(b"N")
        elif kind is bool:
            put(b"T" if value else b"F")
        elif kind is int:
            if -(1 << 63) <= value < 1 << 63:
                put(b"i" + _I64.pack(value))
            else:
                raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
                put(b"I" + _U32.pack(len(raw)) + raw)
        elif kind is float:
            put(b"f" + _F64.pack(value))
        elif kind is complex:
            put(b"c" + _C128.pack(value.real, value.imag))
        elif kind is str:
            raw = value.encode("utf-8", "surrogatepass")
            put(b"s" + _U32.pack(len(raw)) + raw)
        elif kind is bytes:
            put(b"b" + _U32.pack(len(value)) + value)
        elif kind in (list, tuple):
            put((b"l" if kind is list else b"t") + _U32.pack(len(value)))
            for i, item in enumerate(value):
                self.write(item, f"{path}[{i}]", depth + 1)
        elif kind in _DICTS:
            put(_DICTS[kind] + _U32.pack(len(value)))
            for key, item in value.items():
                self.write(key, f"{path}.keys()", depth + 1)
                self.write(item, f"{path}[{key!r}]", depth + 1)
        elif kind in (set, frozenset):
            put((b"S" if kind is set else b"Z") + _U32.pack(len(value)))
            self.parts.extend(sorted(self._apart(item, f"{path}{{}}", depth + 1) for item in value))
        elif kind is np.ndarray:
            self._write_array(_from_numpy(value, path), path)
        elif isinstance(value, np.generic):
            name = _from_numpy(np.asarray(value), path).dtype.encode()
            put(b"g" + _U32.pack(len(name)) + name + value.tobytes())
        elif kind is Array:
            self._write_array(value, path)
        elif kind is SparseArray:
            self._write_sparse(value, path, depth)
        elif kind is Fixed:
            self.write(value.value, path, depth)
        elif kind is Extension:
            tag = value.tag.encode()
            put(b"x" + _U32.pack(len(tag)) + tag)
            self.write(value.value, path, depth + 1)
        else:
            self._adapt(value, path, depth)

    def _apart(self, item: Any, path: str, depth: int) -> bytes:
        parts: list[bytes] = []
        _Encoder(parts, self.adapt, None, 0).write(item, path, depth)
        return b"".join(parts)

    def _adapt(self, value: Any, path: str, depth: int) -> None:
        adapted = self.adapt(value) if self.adapt is not None else value
        if adapted is value or not isinstance(adapted, (Array, SparseArray, Extension)):
            raise UnencodableState(path, value)
        self.write(adapted, path, depth)

    def _write_array(self, array: Array, path: str) -> None:
        if self.out_of_line is not None and array.nbytes >= self.out_of_line_bytes_min:
            self.parts.append(b"A" + _array_header(array) + _U32.pack(len(self.out_of_line)))
            self.out_of_line.append((path, array))
        else:
            self.parts.append(b"a" + _array_header(array) + array.data.tobytes())

    def _write_sparse(self, sparse: SparseArray, path: str, depth: int) -> None:
        self.parts.append(b"p")
        self.write(tuple(sparse.shape), path, depth)
        self.write(sparse.is_coalesced, path, depth)
        self._write_array(sparse.indices, path + "#indices")
        self._write_array(sparse.values, path + "#values")


_DICTS: dict[type, bytes] = {dict: b"d", OrderedDict: b"o", Counter: b"C"}


def _from_numpy(values: np.ndarray[Any, Any], path: str) -> Array:
    if values.dtype.name not in _NUMPY_DTYPES or not values.dtype.isnative:
        raise UnencodableState(f"{path} (dtype {values.dtype})", values)
    return dense(values)


def _array_header(array: Array) -> bytes:
    name, rank = array.dtype.encode(), len(array.shape)
    flag = (1 if array.is_tensor else 0) | (2 if array.strides is not None else 0)
    head = bytes([flag]) + _U32.pack(len(name)) + name + bytes([rank])
    return head + struct.pack(f"<{rank}Q", *array.shape) + struct.pack(f"<{len(array.strides or ())}q", *(array.strides or ()))


class _Decoder:
    def __init__(self, data: memoryview, arrays: Callable[[int, AnyArray], AnyArray] | None,
                 make_array: Callable[[AnyArray], Any] | None,
                 make_extension: Callable[[Extension], Any] | None) -> None:  # fmt: skip
        self.data, self.at, self.arrays = data, 0, arrays
        self.make_array, self.make_extension = make_array or _default_array, make_extension

    def take(self, count: int) -> memoryview:
        if count < 0 or self.at + count > len(self.data):
            raise MalformedTree(f"{count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def length(self) -> int:
        (n,) = _U32.unpack(self.take(4))
        return int(n)

    def text(self) -> str:
        return str(self.take(self.length()), "utf-8", "surrogatepass")

    def read(self, depth: int) -> Any:
        if depth > TREE_DEPTH_MAX + 1:
            raise MalformedTree("nested too deep")
        tag = bytes(self.take(1))
        if tag in _SIMPLE:
            return _SIMPLE[tag]
        method = _READERS.get(tag)
        if method is None:
            raise MalformedTree(f"unknown tag {tag!r} at {self.at - 1}")
        return method(self, depth + 1)

    def _counted(self) -> int:
        count = self.length()
        if count > len(self.data) - self.at:  # every item has at least a tag
            raise MalformedTree(f"{count} items in {len(self.data) - self.at} bytes")
        return count

    def _int(self, depth: int) -> int:
        return int(_I64.unpack(self.take(8))[0])

    def _bigint(self, depth: int) -> int:
        return int.from_bytes(self.take(self.length()), "little", signed=True)

    def _float(self, depth: int) -> float:
        return float(_F64.unpack(self.take(8))[0])

    def _complex(self, depth: int) -> complex:
        return complex(*_C128.unpack(self.take(16)))

    def _str(self, depth: int) -> str:
        return self.text()

    def _bytes(self, depth: int) -> bytes:
        return bytes(self.take(self.length()))

    def _list(self, depth: int) -> list[Any]:
        return [self.read(depth) for _ in range(self._counted())]

    def _tuple(self, depth: int) -> tuple[Any, ...]:
        return tuple(self._list(depth))

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
        indices = self._raw_array(bytes(self.take(1)))
        values = self._raw_array(bytes(self.take(1)))
        if not (isinstance(shape, tuple) and all(type(size) is int for size in shape) and type(coalesced) is bool):
            raise MalformedTree(f"a sparse array of shape {shape!r}")
        return self.make_array(SparseArray(shape, indices, values, coalesced))

    def _extension(self, depth: int) -> Any:
        extension = Extension(self.text(), self.read(depth))
        return extension if self.make_extension is None else self.make_extension(extension)


_NUMPY_DTYPES = frozenset(name for name in ITEMSIZE if name in np.sctypeDict)
_SIMPLE: dict[bytes, Any] = {b"N": None, b"T": True, b"F": False}
_READERS: dict[bytes, Callable[[_Decoder, int], Any]] = {
    b"i": _Decoder._int, b"I": _Decoder._bigint, b"f": _Decoder._float, b"c": _Decoder._complex,
    b"s": _Decoder._str, b"b": _Decoder._bytes, b"l": _Decoder._list, b"t": _Decoder._tuple,
    b"S": _Decoder._set, b"Z": _Decoder._frozenset, b"d": _Decoder._dict, b"o": _Decoder._ordered,
    b"C": _Decoder._counter, b"g": _Decoder._scalar, b"a": _Decoder._array, b"A": _Decoder._far_array,
    b"p": _Decoder._sparse, b"x": _Decoder._extension,
}  # fmt: skip


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
