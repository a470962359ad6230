"""Redo tensor by tensor: all steps of one parameter while it lies in the processor's cache.

Where a core is to spare a thread reads and checks the gradients ahead, while the optimizer works on those before. The bits
are those of redoing step by step.
"""

from __future__ import annotations

import inspect
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tranlogs.errors import LogUnavailable
from tranlogs.log.reader import Entry
from tranlogs.recovery import Divergence
from tranlogs.threads import start_thread
from tranlogs.types import AnyArray, Bytes

from .adapt import from_array
from .stepping import amp_of, clip_again, without_hooks

if TYPE_CHECKING:
    from .state import TorchState

Decoded = tuple[Entry, dict[str, Any]]

_BUNDLE_ELEMENTS = 262_144  # small tensors are redone together, so that Python's cost a call is shared
_AHEAD_STEPS = 2
_ALONE = -1  # the turn of what is not read ahead
_AHEAD_BYTES_MAX = 64 << 20  # gradients larger than this are read one by one: memory for several is not taken


class Bundle:
    """Tensors of one parameter group that are redone together."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.parameters: list[torch.Tensor] = []
        self.names: list[str] = []
        self.elements = self.nbytes = 0

    def add(self, parameter: torch.Tensor, name: str) -> None:
        """One more."""
        self.parameters.append(parameter)
        self.names.append(name)
        self.elements += parameter.numel()
        self.nbytes += parameter.nbytes


class GradientReader:
    """The gradients of a run of records, bundle by bundle; a thread reads ahead. Use it as a context."""

    def __init__(self, run: list[Decoded], bundles: list[Bundle]) -> None:
        self._run, self._bundles = run, bundles
        self._present = [set(entry.tensor_names()) for entry, _ in run]
        self._buffers: dict[tuple[int, int], Bytes] = {}  # by turn, and place in the bundle
        self._ready: queue.Queue[_Portion] = queue.Queue(_AHEAD_STEPS)
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None  # None: read when asked

    def __enter__(self) -> GradientReader:
        if len(os.sched_getaffinity(0)) > torch.get_num_threads():  # without a spare core it would stall the kernels
            with suppress(LogUnavailable):  # no thread is to be had
                self._thread = start_thread("tranlogs-read", self._read_ahead)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        while self._thread is not None and self._thread.is_alive():
            with suppress(queue.Empty):
                self._ready.get(timeout=0.01)  # it may wait for room

    def of(self, bundle: Bundle, position: int) -> list[AnyArray | None]:
        """The gradients of a bundle at a position of the run. They must be asked for in order.

        Raises:
            CorruptRecord: a gradient is damaged.
        """
        found = self._ready.get() if self._thread is not None else None
        if isinstance(found, BaseException):
            raise found
        return found if found is not None else self._read(bundle, position, _ALONE)

    def _read_ahead(self) -> None:
        turns = itertools.cycle(range(_AHEAD_STEPS + 2))  # one is being read, one is in use
        for bundle in self._bundles:
            is_small = bundle.nbytes <= _AHEAD_BYTES_MAX
            for position in range(len(self._run)):
                try:
                    portion: _Portion = self._read(bundle, position, next(turns)) if is_small else None
                except Exception as error:
                    portion = error
                if self._is_stopped.is_set():
                    return
                self._ready.put(portion)
                if isinstance(portion, Exception):
                    return

    def _read(self, bundle: Bundle, position: int, turn: int) -> list[AnyArray | None]:
        return [self._gradient(position, f"grad/{name}", (turn, place)) for place, name in enumerate(bundle.names)]

    def _gradient(self, position: int, name: str, where: tuple[int, int]) -> AnyArray | None:
        if name not in self._present[position]:
            return None
        entry = self._run[position][0]
        size = entry.nbytes_of(name)
        buffer = self._buffers.get(where)
        if buffer is None or buffer.nbytes < size:
            buffer = self._buffers[where] = np.empty(size, np.uint8)
        return entry.read(name, buffer)


_Portion = list[AnyArray | None] | None | Exception  # None: too large to be read ahead


class ByTensor:
    """Redo a run of gradient records of one optimizer, a bundle of tensors at a time."""

    def __init__(self, state: TorchState, run: list[Decoded]) -> None:
        self.state, self.run = state, run
        self.which = run[0][1]["optimizer"]
        self.optimizer = state.optimizers[self.which]
        self.fingerprint = state.fingerprint
        self.index = {name: i for i, name in enumerate(list(state.parameters)[: len(self.fingerprint.tensors)])}
        self.first = len(run)  # position in the run of the first divergence
        self.tensor = ""

    def redo(self, tick: Callable[[int], None]) -> Divergence | None:
        """Apply the run; a Divergence if a fingerprint differs."""
        bundles = list(self._bundles())
        total = sum(bundle.elements for bundle in bundles) or 1
        done = 0
        with GradientReader(self.run, bundles) as gradients:
            for bundle in bundles:
                self._redo_bundle(bundle, gradients)
                done += bundle.elements
                tick(len(self.run) * done // total)
        self._compare_untouched({id(p) for bundle in bundles for p in bundle.parameters})
        self.state.set_hyper(self.which, self.run[-1][1]["hyper"])
        self.state.fingerprint_kinds |= {body["fingerprint"] for _, body in self.run}
        if self.first == len(self.run):
            return None
        return Divergence(self.run[self.first][0].step, self.tensor)

    def _bundles(self) -> Iterator[Bundle]:
        """Large tensors alone, small ones together."""
        recorded = len(self.run[0][1]["hyper"])  # a group behind these was added later
        for i, group in enumerate(self.optimizer.param_groups[:recorded]):
            bundle = Bundle(i)
            for parameter in group["params"]:
                if bundle.parameters and bundle.elements + parameter.numel() > _BUNDLE_ELEMENTS:
                    yield bundle
                    bundle = Bundle(i)
                bundle.add(parameter, self.state.name_of[id(parameter)])
            if bundle.parameters:
                yield bundle

    @torch.no_grad()
    def _redo_bundle(self, bundle: Bundle, gradients: GradientReader) -> None:
        whole = self.optimizer.param_groups[bundle.group]
        options = {k: v for k, v in whole.items() if k not in ("params", "param_names")}
        alone = type(self.optimizer)([{"params": bundle.parameters, **options}], **_defaults(self.optimizer))
        alone.state = self.optimizer.state
        target = alone.param_groups[0]
        for position, (_, body) in enumerate(self.run):
            for key, value in body["hyper"][bundle.group].items():
                target[key] = value
            for parameter, array in zip(bundle.parameters, gradients.of(bundle, position), strict=True):
                parameter.grad = None if array is None else from_array(array)
            clip_again([p for p in bundle.parameters if p.grad is not None], body)
            with amp_of(alone, body), without_hooks(alone):
                alone.step()
            for name in bundle.names:
                self._check(position, name)
        for parameter in bundle.parameters:  # its memory is going to be read into again
            parameter.grad = None if parameter.grad is None else parameter.grad.clone()

    def _check(self, position: int, name: str, whole: int | None = None) -> None:
        """Compare one tensor after one step; `whole` is its full digest where that is known."""
        entry, body = self.run[position]
        index = self.index.get(name)
        if index is None or position >= self.first or not entry.digests:
            return
        is_full = body["fingerprint"] == "full"
        window = range(len(self.index)) if is_full else self.fingerprint.window(entry.step)
        if index not in window:
            return
        if is_full:
            now = self.fingerprint.one(index) if whole is None else whole
        else:
            now = int(self.fingerprint.sampled([index], entry.step)[0])
        if now != np.frombuffer(entry.digests, "<u8")[window.index(index)]:
            self.first, self.tensor = position, name

    def _compare_untouched(self, done: set[int]) -> None:
        """Parameters of other optimizers, and frozen ones, must be as recorded all along."""
        for name, parameter in self.state.parameters.items():
            if id(parameter) not in done and name in self.index:
                whole = self.fingerprint.one(self.index[name])  # the same at every position
                for position in range(len(self.run)):
                    self._check(position, name, whole)


def _defaults(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What the constructor wants; options that it does not take (`initial_lr`, ...) stay in the group."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    return {key: value for key, value in optimizer.defaults.items() if key in accepted}
