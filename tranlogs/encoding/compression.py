"""Compression of tensors. Only bytes that can be compressed at the speed of a memory copy are compressed.

    RAW     the bytes as they are
    ZERO    all bytes are zero; nothing is stored
    HIGH16  every 32-bit word has a zero low half (fp32 that holds bf16 values, as autocast makes); the high halves are stored
    NONZERO most 32-bit words are zero (gradients of embeddings, of units that ReLU has switched off); the others are
            stored, and after them one bit for each word, the lowest bit of a byte first: 1 for a word that is stored

Compression is bit-exact and never makes the data larger. Dense fp32 noise has an entropy of 26.6 bits of 32; a small sample
recognises it, and it is stored as it is.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ..base import lazy_numpy as np
from ..base.types import Bytes

_SAMPLE = 64  # words that are looked at first


class Codec(IntEnum):
    """Compression method. The numbers are part of the format."""

    RAW = 0
    ZERO = 1
    HIGH16 = 2
    NONZERO = 3


def compress(data: Bytes) -> tuple[Codec, Bytes]:
    """Choose a codec for some bytes and apply it. With RAW, the result is a view."""
    size = data.nbytes
    if size < _SAMPLE * 4:
        return (Codec.RAW, data) if size == 0 or data.any() else (Codec.ZERO, data[:0])
    if size % 4:
        return Codec.RAW, data
    words = data.view(np.uint32)
    step = max(1, words.size // _SAMPLE)
    sample = words[::step]
    combined = int(np.bitwise_or.reduce(sample))
    if combined & 0xFFFF == 0:
        combined = int(np.bitwise_or.reduce(words))
        if combined == 0:
            return Codec.ZERO, data[:0]
        if np.count_nonzero(sample) * 2 >= sample.size and combined & 0xFFFF == 0:
            return Codec.HIGH16, words.view(np.uint16)[1::2].copy().view(np.uint8)
    if np.count_nonzero(sample) * 2 < sample.size:
        if not words.any():
            return Codec.ZERO, data[:0]
        packed = _drop_zeros(words)
        if packed.nbytes < size - size // 8:
            return Codec.NONZERO, packed
    return Codec.RAW, data


def decompress(codec: int, stored: Bytes, out: Bytes) -> None:
    """Fill `out` with the original bytes.

    Raises:
        ValueError: `stored` does not decompress to `out.nbytes` bytes.
    """
    if codec == Codec.RAW:
        _expect(stored.nbytes, out.nbytes)
        np.copyto(out, stored)
    elif codec == Codec.ZERO:
        _expect(stored.nbytes, 0)
        out[:] = 0
    elif codec == Codec.HIGH16:
        _expect(stored.nbytes * 2, out.nbytes)
        halves = out.view(np.uint16)
        halves[0::2] = 0
        halves[1::2] = np.frombuffer(stored, np.uint16)
    elif codec == Codec.NONZERO:
        _put_zeros(stored, out)
    else:
        raise ValueError(f"unknown codec {codec}")


def _drop_zeros(words: np.ndarray[Any, np.dtype[np.uint32]]) -> Bytes:
    is_stored = words != 0
    places = np.flatnonzero(is_stored)
    packed = np.empty(places.size * 4 + (words.size + 7) // 8, np.uint8)
    np.take(words, places, out=packed[: places.size * 4].view(np.uint32), mode="clip")  # "raise" would copy once more
    packed[places.size * 4 :] = np.packbits(is_stored, bitorder="little")
    return packed


def _put_zeros(stored: Bytes, out: Bytes) -> None:
    words = out.view(np.uint32)  # ValueError if the size is no multiple of 4
    bits_bytes = (words.size + 7) // 8
    stored_bytes = max(stored.nbytes - bits_bytes, 0)
    bits = np.unpackbits(np.frombuffer(stored[stored_bytes:], np.uint8), bitorder="little")
    places = np.flatnonzero(bits.view(np.bool_))
    _expect(stored.nbytes, places.size * 4 + bits_bytes)
    if places.size and places[-1] >= words.size:
        raise ValueError(f"expected {words.size} words, got one with the number {places[-1]}")
    words.fill(0)
    words[places] = np.frombuffer(stored[:stored_bytes], "<u4")


def _expect(got: int, wanted: int) -> None:
    if got != wanted:
        raise ValueError(f"expected {wanted} bytes, got {got}")
