"""Codec `auto`: what shrinks at memcpy speed is shrunk, the rest is stored as it is. Never larger, always bit-exact.

    RAW     the bytes
    ZERO    all bytes zero: nothing is stored
    HIGH16  every 32-bit word has a zero low half (fp32 holding bf16 values, as autocast gives): the high halves
    ZSTD    mostly zero bytes (embedding gradients): zstd level 1

Dense fp32 noise has 26.6 bits of 32: it is recognised by a small sample and left alone.
"""

from __future__ import annotations

import threading
from enum import IntEnum

import numpy as np
import zstandard

from ..base.types import Bytes

_SAMPLE = 64  # words looked at before the whole tensor is


class Codec(IntEnum):
    """How a frame's bytes are stored; the numbers are part of the format."""

    RAW = 0
    ZERO = 1
    HIGH16 = 2
    ZSTD = 3


_threads = threading.local()


def compress(data: Bytes) -> tuple[Codec, Bytes]:
    """Choose a codec for some bytes and apply it. RAW returns a view, not a copy."""
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
        packed = np.frombuffer(pack(data.data), np.uint8)
        if packed.nbytes < size - size // 8:
            return Codec.ZSTD, packed
    return Codec.RAW, data


def decompress(codec: int, stored: Bytes, out: Bytes) -> None:
    """Fill `out` with the original bytes.

    Raises:
        ValueError: `stored` does not give `out.nbytes` bytes.
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
    elif codec == Codec.ZSTD:
        _unzstd(stored, out)
    else:
        raise ValueError(f"unknown codec {codec}")


def _unzstd(stored: Bytes, out: Bytes) -> None:
    np.copyto(out, np.frombuffer(unpack(stored.data, out.nbytes), np.uint8))


def pack(data: bytes | memoryview) -> bytes:
    """One zstd frame, level 1, that says how long its content is."""
    return _compressor().compress(data)


def unpack(packed: bytes | memoryview, nbytes: int) -> bytes:
    """The content of a zstd frame of `nbytes` bytes.

    Raises:
        ValueError: it is none.
    """
    try:
        _expect(zstandard.frame_content_size(packed), nbytes)  # first: zstd would take memory for whatever it says
        raw = _decompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    _expect(len(raw), nbytes)
    return raw


def _expect(got: int, wanted: int) -> None:
    if got != wanted:
        raise ValueError(f"{got} bytes where {wanted} are needed")


def _compressor() -> zstandard.ZstdCompressor:  # one a thread: a compressor must not be shared
    found: zstandard.ZstdCompressor | None = getattr(_threads, "compressor", None)
    if found is None:
        found = _threads.compressor = zstandard.ZstdCompressor(level=1)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_threads, "decompressor", None)
    if found is None:
        found = _threads.decompressor = zstandard.ZstdDecompressor()
    return found
