"""Digests of the state after each step: replay compares them, so that exactness is known and not assumed.

Full mode hashes every byte. Where that would cost more than 3 % of a step, a window of tensors that rotates with the step is
sampled instead, some bytes of each, and the report says so.

The hash is xxh3 (xxhash, https://xxhash.com): 41 MB take 1.5 ms, and other threads run meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from ..base.errors import UsageError
from ..base.types import Bytes

Mode = Literal["auto", "full", "sample"]
Digests = npt.NDArray[np.uint64]

WINDOW = 64  # tensors that are sampled at a step
BUDGET = 0.03  # of a step, for one look
_FREE_SECONDS = 0.0003  # a look cheaper than this is never too much: to know is worth it
_LOOKS = 16  # steps that are measured before a decision: the fastest of them counts, others may have been disturbed


class Fingerprint:
    """Digests over a fixed list of tensors, whose memory is asked for at each look.

    Args:
        memory: gives a flat view of each tensor's bytes, in the same order each time.
        count: how many tensors there are.
        mode: "auto" begins with full digests.
        sample_bytes: about so many bytes of each tensor of a window.

    Attributes:
        kind: "full", "sample", or what an integration computes of all bytes where they lie ("device").
    """

    def __init__(
        self, memory: Callable[[], Sequence[Bytes]], count: int, mode: Mode = "auto", *, sample_bytes: int = 64
    ) -> None:
        if mode not in ("auto", "full", "sample"):
            raise UsageError(f'fingerprint={mode!r}: use "auto", "full" or "sample"')
        self._memory, self.count, self._sample_bytes = memory, count, sample_bytes
        self.kind: str = "sample" if mode == "sample" else "full"
        self._is_fixed = mode != "auto"
        self._look_seconds: deque[float] = deque(maxlen=_LOOKS)
        self._step_seconds: deque[float] = deque(maxlen=_LOOKS)

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are looked at."""
        return self.kind != "sample"

    @property
    def look_seconds(self) -> float:
        """What a full look takes: the fastest of the last ones; 0 before the first."""
        return min(self._look_seconds, default=0.0)

    @property
    def step_seconds(self) -> float:
        """What a step takes: the fastest of the last ones; 0 before the first."""
        return min(self._step_seconds, default=0.0)

    def digests(self, step: int, kind: str | None = None) -> Digests:
        """Return one number a tensor (full), or one a tensor of this step's window (sample)."""
        kind = kind or self.kind
        if kind == "sample":
            return self.sampled(self.window(step), step)
        start = time.perf_counter()
        found = self.whole(kind)
        self._look_seconds.append(time.perf_counter() - start)
        return found

    def whole(self, kind: str) -> Digests:
        """Return digests of all bytes, of a kind."""
        assert kind == "full", f"fingerprints of the kind {kind!r}"
        return full_digests([view.data for view in self._memory()])

    def window(self, step: int) -> list[int]:
        """Return the tensors that are sampled at a step."""
        return window_of(self.count, step)

    def one(self, index: int) -> int:
        """Return the digest of all bytes of one tensor."""
        return digest_of(self._memory()[index])

    def sampled(self, indices: Sequence[int], step: int) -> Digests:
        """Return digests of some bytes of tensors, others at another step."""
        memory = self._memory()
        return np.array([digest_of(some_bytes(memory[i], step, self._sample_bytes)) for i in indices], np.uint64)

    def fit_budget(self, step_seconds: float) -> None:
        """Fall back to sampling where a full look costs too much of a step."""
        self._step_seconds.append(step_seconds)
        if self._is_fixed or not self.is_whole:
            return
        look = self.look_seconds
        if len(self._step_seconds) == _LOOKS and look > _FREE_SECONDS and look > BUDGET * min(self._step_seconds):
            self.kind = "sample"


def full_digests(buffers: Iterable[memoryview]) -> Digests:
    """Return the digest of all bytes of each tensor."""
    return np.array(list(map(xxhash.xxh3_64_intdigest, buffers)), np.uint64)


def digest_of(data: Bytes) -> int:
    """Return the digest of some bytes."""
    return xxhash.xxh3_64_intdigest(data.data if data.flags.c_contiguous else np.ascontiguousarray(data).data)


def window_of(count: int, step: int) -> list[int]:
    """Return which of `count` tensors are sampled at a step."""
    return [(step * WINDOW + i) % count for i in range(min(WINDOW, count))]


def some_bytes(memory: Any, step: int, count: int) -> Any:
    """Return about `count` bytes all over the memory, in time every one; an odd stride meets every byte of a number."""
    stride = max(1, len(memory) // count) | 1
    return memory[step % stride :: stride]
