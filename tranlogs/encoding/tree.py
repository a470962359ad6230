"""The byte format of plain values: hyper-parameters, RNG states, the result of any `state_dict()`. It needs no pickle.

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
    A            array out of line: header, index (u32) into the arrays that are stored outside of the tree
    p            sparse COO tensor: shape (tuple), coalesced (bool), then indices and values, each an `a` or `A` array
    x            extension of an integration: tag (str), value

An array's header: flag byte (1 = framework tensor, 2 = has strides), dtype (str), rank (u8), shape (u64 each), strides
(i64 each, if flagged). A number that changes keeps its size, so that two states of one object can be stored as a difference
(`delta.py`). Only the exact types are accepted, because a subclass could have behaviour that would be lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ..base.config import OUT_OF_LINE_BYTES_MIN
from ..base.errors import UnencodableState
from ..base.types import AnyArray, Extension
from .tree_decoder import Decoder
from .tree_encoder import Encoder, TooDeep, find_cycle
from .tree_values import Adapt, Fixed, MalformedTree, to_numpy

__all__ = ["Adapt", "Fixed", "MalformedTree", "decode", "encode", "to_numpy"]


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
        value: the value. The types above are accepted.
        path: name of the value in error messages.
        adapt: turns a framework's values into arrays and extensions.
        out_of_line: list to which arrays of `out_of_line_bytes_min` bytes or more are appended with their paths. The tree
            refers to them by index. If None, all arrays are stored in the tree.
        out_of_line_bytes_min: size from which on arrays are out of line.

    Raises:
        UnencodableState: the value contains a value that cannot be stored; the message has the path of that value.
    """
    parts: list[bytes] = []
    try:
        Encoder(parts, adapt, out_of_line, out_of_line_bytes_min, path).write(value)
    except TooDeep:
        if (place := find_cycle(value, path)) is None:
            raise
        raise UnencodableState(place, value, "contains itself") from None
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
        data: the result of `encode`.
        arrays: returns an out-of-line array, given its index and an array of the same layout without data.
        make_array: makes the framework's tensor of an array (default: returns numpy arrays as such, other arrays as `Array`).
        make_extension: makes the framework's value of an extension (default: returns the `Extension`).

    Raises:
        MalformedTree: the bytes are damaged.
    """
    reader = Decoder(bytes(data), arrays, make_array, make_extension)
    try:
        value = reader.read(0)
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError, TypeError, ValueError) as error:
        raise MalformedTree(str(error)) from None
    if reader.at != len(reader.data):
        raise MalformedTree(f"{len(reader.data) - reader.at} bytes follow the value")
    return value
