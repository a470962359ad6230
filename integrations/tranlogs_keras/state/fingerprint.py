"""Digests of weights and optimizer state after each step, of values that a backend has read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tranlogs.training import Digests, Mode, digest_of, window_of
from tranlogs.training import Fingerprint as BaseFingerprint

from ..backends.arrays import Values, flat_bytes

__all__ = ["Digests", "Fingerprint", "Mode", "digest", "window"]

_SAMPLE_BYTES = 256  # of each variable of a window, about


class Fingerprint(BaseFingerprint):
    """Digests of a fixed list of variables, whose values are passed in."""

    def __init__(self, mode: Mode = "auto") -> None:
        self._values: Sequence[Values] = ()
        self._nbytes = 0
        super().__init__(lambda: [flat_bytes(value) for value in self._values], 0, mode, sample_bytes=_SAMPLE_BYTES)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def of(self, values: Sequence[Values], step: int, kind: str | None = None) -> Digests:
        """Return one number a variable (full), or one a variable of this step's window (sample)."""
        if len(values) != self.count:
            self._nbytes = sum(value.nbytes for value in values)
        self._values, self.count = values, len(values)
        try:
            return self.digests(step, kind)
        finally:
            self._values = ()

    @staticmethod
    def of_digests(digests: Sequence[int]) -> Digests:
        """Return the full kind, of what was computed already."""
        return np.array(digests, np.uint64)


def window(count: int, step: int) -> list[int]:
    """Return the variables that are sampled at a step."""
    return window_of(count, step)


def digest(values: Values) -> int:
    """Return the digest of all bytes of one value."""
    return digest_of(flat_bytes(values))
