"""Digests of the state after each step. Replay compares them, so that exactness is verified and not assumed.

In full mode, every byte is hashed. The mode "auto" is full as long as a step logs at least a quarter of the bytes that would be
hashed, because logging a byte takes longer than hashing four; whether a model is verified then depends on its shape and not on
how busy the machine was. Where a step logs less (a large embedding with sparse gradients, a frozen model with an adapter), full
digests give way if they take more than 3 % of a step: some bytes of a window of tensors are hashed instead. The window rotates
with the step, and the report notes it. A state of up to 1 MiB is always hashed in full.

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
BUDGET = 0.03  # of a step, for full digests
SMALL_BYTES = 1 << 20  # hashed in full, also where a busy machine makes that look slow
_FREE_SECONDS = 0.0003  # full digests that are faster than this are never replaced by samples
_HASHED_OVER_LOGGED = 4  # bytes that are hashed in any case for each byte that a step logs
_MEASURED_STEPS = 16  # before a decision; the fastest counts, since others may have been disturbed


class Fingerprint:
    """Digests of a fixed list of tensors, whose memory is requested each time.

    Args:
        memory: returns a flat view of each tensor's bytes, always in the same order.
        count: number of tensors.
        mode: "full", "sample", or "auto", which starts with full digests.
        sample_bytes: about how many bytes to sample of each tensor in a window.

    Attributes:
        kind: "full", "sample", or the name of a digest of all bytes that an integration computes on the device ("device").
        look_seconds: duration of full digests: the fastest of the recent ones; 0 before the first.
        step_seconds: duration of a step: the fastest of the recent ones; 0 before the first.
    """

    def __init__(
        self, memory: Callable[[], Sequence[Bytes]], count: int, mode: Mode = "auto", *, sample_bytes: int = 64
    ) -> None:
        if mode not in ("auto", "full", "sample"):
            raise UsageError(f'fingerprint must be "auto", "full" or "sample", got {mode!r}')
        self._memory, self.count, self._sample_bytes = memory, count, sample_bytes
        self.kind: str = "sample" if mode == "sample" else "full"
        self._is_fixed = mode != "auto"
        self._logged_bytes = 0  # by the step that logged most
        self._look_seconds: deque[float] = deque(maxlen=_MEASURED_STEPS)
        self.look_seconds = 0.0
        self._step_seconds: deque[float] = deque(maxlen=_MEASURED_STEPS)
        self.step_seconds = 0.0

    @property
    def is_whole(self) -> bool:
        """True if all bytes are hashed."""
        return self.kind != "sample"

    @property
    def nbytes(self) -> int:
        """Number of bytes that full digests read."""
        return sum(view.nbytes for view in self._memory())

    def note_logged(self, nbytes: int) -> None:
        """Record how many bytes of tensors a step logs."""
        self._logged_bytes = max(self._logged_bytes, nbytes)

    def digests(self, step: int, kind: str | None = None) -> Digests:
        """Return one digest for each tensor (full), or for each tensor of this step's window (sample)."""
        kind = kind or self.kind
        if kind == "sample":
            return self.sampled(self.window(step), step)
        start = time.perf_counter()
        found = self.whole(kind)
        self._look_seconds.append(time.perf_counter() - start)
        self.look_seconds = min(self._look_seconds)
        return found

    def whole(self, kind: str) -> Digests:
        """Return digests of all bytes, of the given kind."""
        assert kind == "full", f"fingerprints of the kind {kind!r}"
        return full_digests([view.data for view in self._memory()])

    def window(self, step: int) -> list[int]:
        """Return the indices of the tensors that are sampled at a step."""
        return window_of(self.count, step)

    def one(self, index: int) -> int:
        """Return the digest of all bytes of one tensor."""
        return digest_of(self._memory()[index])

    def sampled(self, indices: Sequence[int], step: int) -> Digests:
        """Return digests of some bytes of tensors; which bytes depends on the step."""
        memory = self._memory()
        return np.array([digest_of(some_bytes(memory[i], step, self._sample_bytes)) for i in indices], np.uint64)

    def fit_budget(self, step_seconds: float) -> None:
        """Fall back to sampling if full digests take too much of a step that logs little."""
        self._step_seconds.append(step_seconds)
        self.step_seconds = min(self._step_seconds)
        look = self.look_seconds
        if look <= _FREE_SECONDS or self._is_fixed or not self.is_whole:
            return
        is_slow = len(self._step_seconds) == _MEASURED_STEPS and look > max(_FREE_SECONDS, BUDGET * self.step_seconds)
        if is_slow and self.nbytes > max(SMALL_BYTES, _HASHED_OVER_LOGGED * self._logged_bytes):
            self.kind = "sample"


def full_digests(buffers: Iterable[memoryview]) -> Digests:
    """Return the digest of all bytes of each tensor."""
    return np.array(list(map(xxhash.xxh3_64_intdigest, buffers)), np.uint64)


def digest_of(data: Bytes) -> int:
    """Return the digest of some bytes."""
    return xxhash.xxh3_64_intdigest(data.data if data.flags.c_contiguous else np.ascontiguousarray(data).data)


def window_of(count: int, step: int) -> list[int]:
    """Return the indices of the tensors, out of `count`, that are sampled at a step."""
    return [(step * WINDOW + i) % count for i in range(min(WINDOW, count))]


def some_bytes(memory: Any, step: int, count: int) -> Any:
    """Return about `count` bytes spread over the memory; over many steps, every byte.

    The stride is odd, so that the sample contains every byte position of multi-byte numbers.
    """
    stride = max(1, len(memory) // count) | 1
    return memory[step % stride :: stride]
