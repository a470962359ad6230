"""The state of an optimizer, as the search for writes between steps looks at it."""

from __future__ import annotations

import time
from itertools import chain
from operator import attrgetter, is_, sub
from typing import Any

import numpy as np
import torch
import xxhash

from tranlogs.base.types import Bytes
from tranlogs.training import FIRST_UNITS, digest_of, some_bytes

from ..tensors.arrays import local
from .fingerprint import memory_of, version_of

_get_version = attrgetter("_version")

_SAMPLE_BYTES = 16  # of each sampled tensor
_SAMPLE_TENSORS = 32  # that are sampled at a look which does not read all
_FREE_SECONDS = 50e-6  # a look at all of the state that takes less is never left out


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

    def _hold(self, values: list[Any]) -> None:
        """Watch these values from now on."""
        self._values = values
        self._tensors = [value for value in values if isinstance(value, torch.Tensor)]

    def _take(self, versions: list[int], pointers: list[int]) -> None:
        self._versions, self._is_left_out = versions, False
        if pointers != self._pointers:
            dense = (t for t in map(local, self._tensors) if t.device.type == "cpu" and t.layout is torch.strided)
            self._views, self._pointers = [some_bytes(memory_of(t), 0, _SAMPLE_BYTES) for t in dense], pointers
            self._whole_seconds = 0.0
        self._steps += 1
        is_early = self._steps <= FIRST_UNITS or self._steps % FIRST_UNITS == 0
        self._is_whole = is_early or self._was_written or self._whole_seconds < _FREE_SECONDS
        self._first += _SAMPLE_TENSORS
        if self._first >= len(self._views):
            self._first = 0
        self._digest = self._sampled()

    def after_step(self) -> bool:
        """Take the state after a step for what the log has.

        Returns:
            True if something other than the step may have written to the state since the last look at all of it.
        """
        is_left_out, before = self._is_left_out, self._versions
        values = self._look()
        is_same = len(values) == len(self._values) and all(map(is_, values, self._values))
        if not is_same:
            self._hold(values)
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
            known = self._values
            is_same = len(values) == len(known) and all(map(is_, values, known))
            if not is_same and not _are_equal(values, known):
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
            return list(map(_get_version, tensors)), list(map(torch.Tensor.data_ptr, tensors))
        except RuntimeError:  # sparse, sharded, or made in inference mode
            return [version_of(t) for t in tensors], [id(t) for t in tensors]

    def _sampled(self) -> int:
        if not self._is_whole:
            some = self._views[self._first : self._first + _SAMPLE_TENSORS]
            return digest_of(np.concatenate(some)) if some else 0
        start = time.perf_counter()
        digest = xxhash.xxh3_64_intdigest(np.concatenate(self._views).data) if self._views else 0
        seconds = time.perf_counter() - start
        self._whole_seconds = min(self._whole_seconds or seconds, seconds)
        return digest


def _are_equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(map(_is_equal, a, b))


def _is_equal(a: Any, b: Any) -> bool:
    if a is b or isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    try:
        return bool(a == b)
    except (RuntimeError, ValueError):  # lists of tensors (LBFGS): it logs weights anyway
        return True
