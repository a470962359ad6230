"""States of a Mersenne Twister in two parts: its 624 words, which change once in 624 draws, and the rest, some bytes.

A boundary stores the words only where they have changed, because they are an array of 2,496 bytes. What is joined is what was
split, bit for bit.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ...base.types import Bytes

_PYTHON = struct.Struct("<625I")  # the words, and the place of the next one
_WORDS = 624
_TORCH_WORDS_AT = 24  # Seed, place of the next word and flags stand before the words; what is left of a pair of normals, after.
_TORCH_BYTES = 5056  # A word takes 8 bytes.
_TORCH_WORDS_END = _TORCH_WORDS_AT + 8 * _WORDS

SplitPython = tuple[int, "np.ndarray[Any, np.dtype[np.uint32]]", int, float | None]
SplitTorch = tuple["np.ndarray[Any, np.dtype[np.uint32]]", bytes]


def split_python(state: tuple[Any, ...]) -> SplitPython:
    """Split the result of `random.Random.getstate()`: version, words, place of the next word, normal that is left over."""
    version, words, gauss = state
    return version, np.frombuffer(_PYTHON.pack(*words), np.uint32, _WORDS), words[_WORDS], gauss


def join_python(state: Any) -> tuple[Any, ...]:
    """Return what `random.Random.setstate()` takes."""
    version, words, at, gauss = state
    return version, (*words.tolist(), at), gauss


def split_torch(state: Bytes) -> SplitTorch | None:
    """Split the state of torch's generator of the CPU; return None if it has not the length and the form of one."""
    if state.dtype != np.uint8 or state.shape != (_TORCH_BYTES,):
        return None
    halves = state[_TORCH_WORDS_AT:_TORCH_WORDS_END].copy().view(np.uint32)
    if halves[1::2].any():
        return None
    return halves[::2].copy(), state[:_TORCH_WORDS_AT].tobytes() + state[_TORCH_WORDS_END:].tobytes()


def join_torch(words: np.ndarray[Any, Any], rest: bytes) -> Bytes:
    """Return the state that was split.

    Raises:
        ValueError: the parts have other sizes.
    """
    if words.dtype != np.uint32 or words.shape != (_WORDS,) or len(rest) != _TORCH_BYTES - 8 * _WORDS:
        raise ValueError(f"a random state of {words.size} words and {len(rest)} bytes")
    return np.concatenate(
        (
            np.frombuffer(rest[:_TORCH_WORDS_AT], np.uint8),
            words.astype(np.uint64).view(np.uint8),
            np.frombuffer(rest[_TORCH_WORDS_AT:], np.uint8),
        )
    )
