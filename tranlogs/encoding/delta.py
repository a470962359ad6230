"""Differences between encoded values of the same length.

Auxiliary state changes little between boundaries (a few bytes of an RNG), so a boundary can store the compressed XOR with an
earlier value of the same segment instead of the value.
"""

from __future__ import annotations

import numpy as np

from .compression import pack, unpack


def encode(blob: bytes, key: bytes) -> bytes | None:
    """Return the compressed difference between `blob` and `key`; None if it is not much smaller than `blob`."""
    if len(blob) != len(key) or not blob:
        return None
    xor = np.bitwise_xor(np.frombuffer(blob, np.uint8), np.frombuffer(key, np.uint8))
    if np.count_nonzero(xor) * 2 > len(blob):
        return None
    packed = pack(xor.tobytes())
    return packed if len(packed) * 2 < len(blob) else None


def decode(packed: bytes, key: bytes) -> bytes:
    """Return the blob whose difference to `key` is given: the inverse of `encode`.

    Raises:
        ValueError: the bytes are damaged, or `key` has another length than the blob.
    """
    xor = unpack(packed, len(key))
    return np.bitwise_xor(np.frombuffer(xor, np.uint8), np.frombuffer(key, np.uint8)).tobytes()
