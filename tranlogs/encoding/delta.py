"""Auxiliary state changes little from one boundary to the next (a few bytes of an RNG): store the difference.

A blob is a key frame, or the XOR with a key frame of the same length, compressed. The key frame is named by its
sequence number and lies in the same segment, so pruning a segment never takes another one's key away.
"""

from __future__ import annotations

import numpy as np

from .compression import pack, unpack


def encode(blob: bytes, key: bytes) -> bytes | None:
    """`blob` as a compressed difference to `key`; None where that would not pay."""
    if len(blob) != len(key) or not blob:
        return None
    xor = np.bitwise_xor(np.frombuffer(blob, np.uint8), np.frombuffer(key, np.uint8))
    if np.count_nonzero(xor) * 2 > len(blob):
        return None
    packed = pack(xor.tobytes())
    return packed if len(packed) * 2 < len(blob) else None


def decode(packed: bytes, key: bytes) -> bytes:
    """The blob that `encode` was made of.

    Raises:
        ValueError: the bytes are damaged, or it is another key.
    """
    xor = unpack(packed, len(key))
    return np.bitwise_xor(np.frombuffer(xor, np.uint8), np.frombuffer(key, np.uint8)).tobytes()
