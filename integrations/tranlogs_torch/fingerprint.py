"""Digests of the parameters after each step, and the watch for writes that no step made.

Full mode hashes every parameter (41 MB in 1.5 ms): nothing escapes it, `.data` writes and fused kernels included, which
leave version counters alone. Where that would cost more than 3 % of a step (or on a GPU) a window of tensors that
rotates with the step is sampled instead; then version counters help, and a `.data` write to a few elements can be missed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from tranlogs.errors import UsageError
from tranlogs.types import Array, Bytes

from .adapt import memory_order, to_array
from .shards import local

Mode = Literal["auto", "full", "sample"]
Digests = npt.NDArray[np.uint64]

_WINDOW = 64  # tensors looked at each step in sample mode
_BYTES = 64  # bytes of each, about: each is a cache miss
_STATE_BYTES = 16  # bytes of each tensor of optimizer state
_BUDGET = 0.03  # of a step, for the three looks that a step takes
_FREE_SECONDS = 0.0003  # a look cheaper than this (some 2 M parameters) is never too much: to know is worth it
_LOOKS = 16  # steps that are measured before a decision: the fastest of them counts, others may have been disturbed


class Fingerprint:
    """Digests over a fixed list of tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor], mode: Mode = "auto") -> None:
        self.tensors = list(tensors)
        if mode not in ("auto", "full", "sample"):
            raise UsageError(f'fingerprint={mode!r}: use "auto", "full" or "sample"')
        on_cpu = all(t.device.type == "cpu" for t in self.tensors)
        self.kind: str = "full" if mode == "full" or (mode == "auto" and on_cpu) else "sample"
        self._is_fixed = mode != "auto"
        self._views: list[Bytes | None] = [None] * len(self.tensors)
        self._pointers: list[int] = [0] * len(self.tensors)
        self._look_seconds: deque[float] = deque(maxlen=_LOOKS)
        self._step_seconds: deque[float] = deque(maxlen=_LOOKS)

    def digests(self, step: int, kind: str | None = None) -> Digests:
        """One number a tensor (full), or one a tensor of this step's window (sample)."""
        if (kind or self.kind) == "full":
            start = time.perf_counter()
            found = np.array([self.one(i) for i in range(len(self.tensors))], np.uint64)
            self._look_seconds.append(time.perf_counter() - start)
            return found
        return np.array(self._sampled(self.window(step), step), np.uint64)

    def window(self, step: int) -> list[int]:
        """The tensors that are sampled at a step."""
        count = len(self.tensors)
        return [(step * _WINDOW + i) % count for i in range(min(_WINDOW, count))]

    def one(self, index: int) -> int:
        """Digest of all bytes of one tensor."""
        return xxhash.xxh3_64_intdigest(self._memory(index).data)

    def sampled(self, index: int, step: int) -> int:
        """Digest of some bytes of one tensor, others at another step."""
        return self._sampled([index], step)[0]

    def _sampled(self, indices: Sequence[int], step: int) -> list[int]:
        if all(self.tensors[i].device.type == "cpu" for i in indices):
            return [xxhash.xxh3_64_intdigest(np.ascontiguousarray(_some(self._memory(i), step)).data) for i in indices]
        parts = [_some(memory_order(local(self.tensors[i]).data).reshape(-1).view(torch.uint8), step) for i in indices]
        together = torch.cat(parts).cpu().numpy()  # one transfer for all
        ends = np.cumsum([part.numel() for part in parts])
        return [xxhash.xxh3_64_intdigest(piece.data) for piece in np.split(together, ends[:-1])]

    def _memory(self, index: int) -> Bytes:
        """A tensor's bytes in the order of memory: a kept view while the tensor stays where it is."""
        tensor = local(self.tensors[index])
        view, pointer = self._views[index], tensor.data_ptr()
        if view is None or pointer != self._pointers[index] or view.nbytes != tensor.nbytes:
            view = memory_of(tensor)
            self._pointers[index] = pointer
            self._views[index] = view if view.ctypes.data == pointer else None
        return view

    def fit_budget(self, step_seconds: float) -> None:
        """Fall back to sampling where full digests cost too much of a step."""
        if self._is_fixed or self.kind != "full":
            return
        self._step_seconds.append(step_seconds)
        look = min(self._look_seconds, default=0.0)
        if len(self._step_seconds) == _LOOKS and look > _FREE_SECONDS and 3 * look > _BUDGET * min(self._step_seconds):
            self.kind = "sample"


def version_of(tensor: torch.Tensor) -> int:
    """The tensor's version counter; one that was made in inference mode has none."""
    tensor = local(tensor)
    return 0 if tensor.is_inference() else tensor._version


def memory_of(tensor: torch.Tensor) -> Bytes:
    """A tensor's bytes in the order of memory; a view of what it holds now where that lies dense on the CPU."""
    array = to_array(local(tensor).data)
    assert isinstance(array, Array)
    return array.data


def _some(memory: Any, step: int = 0, count: int = _BYTES) -> Any:
    """Bytes all over the memory, in time every one; an odd stride meets every byte of a number."""
    stride = max(1, len(memory) // count) | 1
    return memory[step % stride :: stride]


class StateWatch:
    """Notices writes to optimizer state between steps.

    Tensors are watched by identity and version, and by a few bytes of each: what writes past the version counter (`.data`,
    a numpy alias) writes a tensor, hardly ever a few numbers of it.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._tensors: list[torch.Tensor] = []  # held, so that no id is used again
        self._seen: list[Any] = []
        self._digest = 0
        self._pointers: list[int] = []
        self._views: list[Bytes] = []

    def remember(self) -> None:
        """The state is now as the log has it."""
        self._tensors, self._seen = self._look()
        self._digest = self._digested(self._tensors)

    def changed(self) -> bool:
        """Whether something wrote since `remember`."""
        tensors, now = self._look()
        if len(now) != len(self._seen) or not all(map(_is_same, now, self._seen)):
            return True
        return self._digest != self._digested(tensors)

    def _look(self) -> tuple[list[torch.Tensor], list[Any]]:
        tensors: list[torch.Tensor] = []
        seen: list[Any] = []
        for state in self._optimizer.state.values():
            for key, value in state.items() if isinstance(state, dict) else [("", state)]:
                if isinstance(value, torch.Tensor):
                    tensors.append(value)
                    seen.append((key, id(value), version_of(value)))
                else:
                    seen.append((key, value))
        return tensors, seen

    def _digested(self, tensors: list[torch.Tensor]) -> int:
        """One digest over some bytes of each tensor in the memory of the CPU."""
        dense = [local(t) for t in tensors if t.device.type == "cpu" and t.layout is torch.strided]
        pointers = [t.data_ptr() for t in dense]
        if pointers != self._pointers:
            self._views = [_some(memory_of(t), count=_STATE_BYTES) for t in dense]
            self._pointers = pointers
        return xxhash.xxh3_64_intdigest(np.concatenate(self._views).data) if self._views else 0


def _is_same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    try:
        return a is b or bool(a == b)
    except (RuntimeError, ValueError):  # lists of tensors (LBFGS): it logs weights anyway
        return True
