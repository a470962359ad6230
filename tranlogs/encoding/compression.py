"""Compression of tensors. Only bytes that can be compressed at the speed of a memory copy are compressed.

    RAW     the bytes as they are
    ZERO    all bytes are zero; nothing is stored
    HIGH16  every 32-bit word has a zero low half (fp32 that holds bf16 values, as autocast makes); the high halves are stored
    ZSTD    most bytes are zero (gradients of embeddings); zstd level 1

Compression is bit-exact and never makes the data larger. Dense fp32 noise has an entropy of 26.6 bits of 32; a small sample
recognises it, and it is stored as it is.
"""

from __future__ import annotations

import threading
from enum import IntEnum

import numpy as np
import zstandard

from ..base.types import Bytes

_SAMPLE = 64  # words that are looked at first


class Codec(IntEnum):
    """Compression method. The numbers are part of the format."""

    RAW = 0
    ZERO = 1
    HIGH16 = 2
    ZSTD = 3


_threads = threading.local()


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
        packed = np.frombuffer(pack(data.data), np.uint8)
        if packed.nbytes < size - size // 8:
            return Codec.ZSTD, packed
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
    elif codec == Codec.ZSTD:
        _unzstd(stored, out)
    else:
        raise ValueError(f"unknown codec {codec}")


def _unzstd(stored: Bytes, out: Bytes) -> None:
    np.copyto(out, np.frombuffer(unpack(stored.data, out.nbytes), np.uint8))


def pack(data: bytes | memoryview) -> bytes:
    """Compress data to one zstd frame, level 1, whose header contains the length of the data."""
    return _compressor().compress(data)


def unpack(packed: bytes | memoryview, nbytes: int) -> bytes:
    """Return the content of a zstd frame.

    Raises:
        ValueError: the data are not a zstd frame with `nbytes` bytes of content.
    """
    try:
        _expect(zstandard.frame_content_size(packed), nbytes)  # Before decompression, because zstd allocates this size.
        raw = _decompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    _expect(len(raw), nbytes)
    return raw


def _expect(got: int, wanted: int) -> None:
    if got != wanted:
        raise ValueError(f"expected {wanted} bytes, got {got}")


def _compressor() -> zstandard.ZstdCompressor:  # one for each thread, because threads must not share a compressor
    found: zstandard.ZstdCompressor | None = getattr(_threads, "compressor", None)
    if found is None:
        found = _threads.compressor = zstandard.ZstdCompressor(level=1)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_threads, "decompressor", None)
    if found is None:
        found = _threads.decompressor = zstandard.ZstdDecompressor()
    return found
