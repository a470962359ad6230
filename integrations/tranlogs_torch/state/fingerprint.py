"""The memory of the parameters, as fingerprints and the watch for writes look at it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from operator import is_, sub
from typing import Any

import numpy as np
import torch

from tranlogs.base.types import Array, Bytes
from tranlogs.training import FIRST_UNITS, Digests, Mode, digest_of, full_digests, some_bytes
from tranlogs.training import Fingerprint as BaseFingerprint

from ..device.digests import DeviceDigests
from ..tensors.arrays import memory_order, to_array
from ..tensors.placement import KNOWN, is_dtensor, local

__all__ = ["Digests", "Fingerprint", "Mode", "StateWatch", "memory_of", "version_of"]

_STATE_BYTES = 16  # of each sampled tensor of optimizer state
_STATE_TENSORS = 32  # that are sampled at a look which does not read all
_FREE_SECONDS = 50e-6  # a look at all of the state that takes less is never left out


class Fingerprint(BaseFingerprint):
    """Digests over a fixed list of parameters."""

    def __init__(self, tensors: Sequence[torch.Tensor], mode: Mode = "auto") -> None:
        self.tensors = list(tensors)
        self.on_cpu = all(t.device.type == "cpu" for t in self.tensors)
        super().__init__(self.memory, len(self.tensors), mode)
        if not self.on_cpu and self.kind == "full":  # the bytes stay where they are, and 8 of each tensor come
            self.kind = "device"
        self._device = DeviceDigests()
        self._is_plain = not any(map(is_dtensor, self.tensors))
        self._pointers: list[int] = []
        self._views: list[Bytes] = []
        self._buffers: list[memoryview] = []  # of the views: a digest of one takes half the time
        self.sizes = [local(t).nbytes for t in self.tensors]

    @property
    def nbytes(self) -> int:
        return sum(self.sizes)

    def _local(self) -> list[torch.Tensor]:
        return self.tensors if self._is_plain and not KNOWN else [local(t) for t in self.tensors]

    def memory(self) -> list[Bytes]:
        """Return each tensor's bytes in the order of memory: kept views while the tensors stay where they are."""
        tensors = self._local()
        if not self.on_cpu:
            return [memory_of(t) for t in tensors]
        pointers = [t.data_ptr() for t in tensors]
        if pointers != self._pointers or [t.nbytes for t in tensors] != self.sizes:
            self.sizes = [t.nbytes for t in tensors]
            self._views = [memory_of(t) for t in tensors]
            is_kept = all(view.ctypes.data == pointer for view, pointer in zip(self._views, pointers, strict=True) if view.size)
            self._pointers = pointers if is_kept else []
            self._buffers = [view.data for view in self._views]
        return self._views

    def whole(self, kind: str) -> Digests:
        if kind == "device":
            return self._device.digests([t.data for t in self._local()])
        views = self.memory()
        return full_digests(self._buffers if self.on_cpu else [view.data for view in views])

    def one(self, index: int) -> int:
        """Return the digest of all bytes of one tensor, without a look at where the others lie."""
        tensor = local(self.tensors[index])
        if len(self._pointers) == self.count and tensor.data_ptr() == self._pointers[index]:
            return digest_of(self._views[index])
        return super().one(index)

    def trace(self) -> list[int]:
        """Return what most writes change: where each tensor lies, its version counter, and its order in memory."""
        tensors = self._local()
        return [t.data_ptr() for t in tensors] + versions(tensors) + [t.is_contiguous() for t in tensors]

    def sampled(self, indices: Sequence[int], step: int) -> Digests:
        if self.on_cpu:
            return super().sampled(indices, step)
        tensors = self._local()
        flat = (memory_order(tensors[i].data).reshape(-1).view(torch.uint8) for i in indices)
        parts = [some_bytes(bytes_, step, self._sample_bytes) for bytes_ in flat]
        coordinator = torch.cat(parts).cpu().numpy()  # one transfer for all
        ends = np.cumsum([part.numel() for part in parts])
        return np.array([digest_of(piece) for piece in np.split(coordinator, ends[:-1])], np.uint64)


def version_of(tensor: torch.Tensor) -> int:
    """Return the tensor's version counter; one that was made in inference mode has none."""
    tensor = local(tensor)
    return 0 if tensor.is_inference() else tensor._version


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the version counters of tensors that are all of this process."""
    try:
        return [t._version for t in tensors]
    except RuntimeError:  # one was made in inference mode
        return [0 if t.is_inference() else t._version for t in tensors]


def memory_of(tensor: torch.Tensor) -> Bytes:
    """Return a tensor's bytes in the order of memory; a view of what it holds now where that lies dense on the CPU."""
    array = to_array(local(tensor).data)
    assert isinstance(array, Array)
    return array.data


class StateWatch:
    """Notices writes to optimizer state between steps.

    Tensors are watched by identity, address and version. What writes past the version counter (`.data`, a numpy alias) is found
    by a few bytes of each tensor. Bytes of all tensors are read where that takes less than 50 us, in the first steps of a
    process, at every 32nd step, and always once such a write was found; otherwise bytes of some tensors in turn.

    A step of most optimizers raises each version by the same number every time. Once that is known, the look before a step
    reads bytes only: a write between the boundary and the step shows afterwards, as a version that rose by another number.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._values: list[Any] = []  # held, so that no id is used again
        self._tensors: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._pointers: list[int] = []
        self._views: list[Bytes] = []  # some bytes of each tensor that lies dense in the memory of the CPU
        self._first = 0  # of the views that are looked at now
        self._is_whole = True  # whether all are
        self._steps = 0
        self._whole_seconds = 0.0  # what reading all takes: the fastest time so far
        self._was_written = False  # past the version counters
        self._digest = 0
        self._rises: list[int] = []  # by how much the last steps raised each version
        self._steady_steps = 0  # that raised the versions by these numbers
        self._steady_steps_needed = FIRST_UNITS
        self._is_left_out = False  # the look at the versions before the present step

    def remember(self) -> None:
        """Take the state as it is now for what the log has."""
        self._hold(self._look())
        self._take(*self._trace())

    def _hold(self, values: list[Any]) -> bool:
        """Watch these values from now on; return True if they are the ones that were watched."""
        if _are_same(values, self._values):
            return True
        self._values = values
        self._tensors = [value for value in values if isinstance(value, torch.Tensor)]
        return False

    def _take(self, versions: list[int], pointers: list[int]) -> None:
        self._versions, self._is_left_out = versions, False
        if pointers != self._pointers:
            dense = (t for t in map(local, self._tensors) if t.device.type == "cpu" and t.layout is torch.strided)
            self._views, self._pointers = [some_bytes(memory_of(t), 0, _STATE_BYTES) for t in dense], pointers
            self._whole_seconds = 0.0
        self._steps += 1
        is_early = self._steps <= FIRST_UNITS or self._steps % FIRST_UNITS == 0
        self._is_whole = is_early or self._was_written or self._whole_seconds < _FREE_SECONDS
        self._first += _STATE_TENSORS
        if self._first >= len(self._views):
            self._first = 0
        self._digest = self._sampled()

    def after_step(self) -> bool:
        """Take the state after a step for what the log has.

        Returns:
            True if something other than the step may have written to the state since the last look at all of it.
        """
        is_left_out, before = self._is_left_out, self._versions
        is_same = self._hold(self._look())
        versions, pointers = self._trace()
        rises = list(map(sub, versions, before)) if is_same and pointers == self._pointers else []
        is_usual = bool(rises) and rises == self._rises
        if is_usual:
            self._steady_steps += 1
        else:
            self._rises, self._steady_steps = rises, 0
            if is_left_out:
                self._steady_steps_needed *= 2
        self._take(versions, pointers)
        return is_left_out and not is_usual

    def changed(self, *, is_before_step: bool = False) -> bool:
        """Return True if something wrote to the state since `remember`.

        Args:
            is_before_step: `after_step` follows, and finds what is left out here.
        """
        if is_before_step and self._steady_steps >= self._steady_steps_needed:
            self._is_left_out = True
        else:
            values = self._look()
            if not _are_same(values, self._values) and not _are_equal(values, self._values):
                return True
            if (self._versions, self._pointers) != self._trace():
                return True
        is_written = self._digest != self._sampled()
        self._was_written |= is_written
        return is_written

    def _look(self) -> list[Any]:
        """Return how many values each parameter's state has, and the values."""
        state = self._optimizer.state
        try:
            return [*map(len, state.values()), *chain.from_iterable(map(dict.values, state.values()))]
        except TypeError:  # a value that is no dict
            found: list[Any] = []
            for value in state.values():
                found += [*value, *value.values()] if isinstance(value, dict) else [value]
            return found

    def _trace(self) -> tuple[list[int], list[int]]:
        """Return the versions of the tensors that `_look` found last, and where they lie."""
        tensors = self._tensors
        try:
            return [t._version for t in tensors], [t.data_ptr() for t in tensors]
        except RuntimeError:  # sparse, sharded, or made in inference mode
            return [version_of(t) for t in tensors], [id(t) for t in tensors]

    def _sampled(self) -> int:
        if not self._is_whole:
            some = self._views[self._first : self._first + _STATE_TENSORS]
            return digest_of(np.concatenate(some)) if some else 0
        start = time.perf_counter()
        digest = digest_of(np.concatenate(self._views)) if self._views else 0
        seconds = time.perf_counter() - start
        self._whole_seconds = min(self._whole_seconds or seconds, seconds)
        return digest


def _are_same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(map(is_, a, b))


def _are_equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(map(_is_equal, a, b))


def _is_equal(a: Any, b: Any) -> bool:
    if a is b or isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    try:
        return bool(a == b)
    except (RuntimeError, ValueError):  # lists of tensors (LBFGS): it logs weights anyway
        return True
