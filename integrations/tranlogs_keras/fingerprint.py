"""Digests of weights and optimizer state after each step: redo compares them, so that exact is known and not hoped for.

Full mode hashes every byte. Where that would cost more than 3 % of a step, a window of variables that rotates with the
step is sampled instead, and the report says so.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import xxhash

from tranlogs.errors import UsageError

from .adapt import Values, flat_bytes

Mode = Literal["auto", "full", "sample"]
Digests = npt.NDArray[np.uint64]

_WINDOW = 16  # variables looked at each step in sample mode
_BYTES = 256  # bytes of each, about
_BUDGET = 0.03  # of a step
_FREE_SECONDS = 0.00005  # a look cheaper than this is never too much
_LOOKS = 16  # steps that are measured before a decision: the fastest counts, others may have been disturbed


class Fingerprint:
    """Digests of a fixed list of variables, whose values are passed in.

    Attributes:
        kind: "full" or "sample".
    """

    def __init__(self, mode: Mode = "auto") -> None:
        if mode not in ("auto", "full", "sample"):
            raise UsageError(f'fingerprint={mode!r}: use "auto", "full" or "sample"')
        self.kind: str = "sample" if mode == "sample" else "full"
        self._is_fixed = mode != "auto"
        self._look_seconds: deque[float] = deque(maxlen=_LOOKS)
        self._step_seconds: deque[float] = deque(maxlen=_LOOKS)

    @staticmethod
    def of_digests(digests: Sequence[int]) -> Digests:
        """The full kind, of what was computed already."""
        return np.array(digests, np.uint64)

    def digests(self, values: Sequence[Values], step: int, kind: str | None = None) -> Digests:
        """One number a variable (full), or one a variable of this step's window (sample)."""
        if (kind or self.kind) == "sample":
            return np.array([_digest(_some(flat_bytes(values[i]), step)) for i in window(len(values), step)], np.uint64)
        start = time.perf_counter()
        found = np.array([_digest(flat_bytes(value)) for value in values], np.uint64)
        self._look_seconds.append(time.perf_counter() - start)
        return found

    def fit_budget(self, step_seconds: float) -> None:
        """Fall back to sampling where full digests cost too much of a step."""
        if self._is_fixed or self.kind != "full":
            return
        self._step_seconds.append(step_seconds)
        look = min(self._look_seconds, default=0.0)
        if len(self._step_seconds) == _LOOKS and look > _FREE_SECONDS and look > _BUDGET * min(self._step_seconds):
            self.kind = "sample"


def window(count: int, step: int) -> list[int]:
    """The variables that are sampled at a step."""
    return [(step * _WINDOW + i) % count for i in range(min(_WINDOW, count))]


def digest(values: Values) -> int:
    """Digest of all bytes of one value."""
    return _digest(flat_bytes(values))


def _digest(data: npt.NDArray[np.uint8]) -> int:
    return xxhash.xxh3_64_intdigest(data.data) if data.size else 0


def _some(data: npt.NDArray[np.uint8], step: int) -> npt.NDArray[np.uint8]:
    """Bytes all over the memory, in time every one; an odd stride meets every byte of a number."""
    stride = max(1, len(data) // _BYTES) | 1
    return data[step % stride :: stride].copy()
