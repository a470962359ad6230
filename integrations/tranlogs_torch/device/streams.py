"""Streams, events and memory of a device, their form on CUDA, and copies of state from a device to host memory.

All work of staging goes through `Device`, so that the same code runs in tests on host memory, where a twin decides in
which of the orders that streams and events allow the work is done.

Copies of state for snapshots are complete when they return. They go through two windows of fixed size, each with pinned memory
on the host and as much on the device. Small tensors are gathered into a window by one multi-tensor copy and transferred
together; large ones are transferred in pieces. While the device fills one window, this thread empties the other. So a snapshot
takes 2 x `FETCH_BYTES` on either side, however large the state is, besides the memory that it is copied to; a tensor that does
not lie in C order is put into it first, which takes the tensor's size on the device for as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from tranlogs.base.types import Bytes

from ..tensors.arrays import flat_bytes
from .gather import Form, Gather, TensorOffsets

Pair = tuple[torch.Tensor, torch.Tensor]  # target, source


class Event(Protocol):
    """A point in the work of a stream."""

    def synchronize(self) -> Any:
        """Block this thread until the stream has passed the point.

        Raises:
            RuntimeError: the device failed.
        """


class Stream(Protocol):
    """Work that is done in order."""

    def wait_event(self, event: Any) -> Any:
        """Let the later work of this stream wait, on the device, until another stream has passed `event`."""


class Device(Protocol):
    """One device: the stream that training uses, and a side stream for transfers.

    Attributes:
        side: the stream for transfers.
    """

    @property
    def side(self) -> Stream: ...

    def training(self) -> Stream:
        """Return the stream that this thread computes on."""

    def run(self, stream: Stream, operation: Callable[[], Any]) -> None:
        """Enqueue torch operations on a stream."""

    def transfer(self, stream: Stream, pairs: Sequence[Pair]) -> list[Event]:
        """Enqueue copies to the host in order, with an event after each."""

    def record(self, stream: Stream) -> Event:
        """Return an event after all that was enqueued on a stream."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return uint8 memory on the device. Both streams may use it; it is reused only after both are done with it.

        Raises:
            RuntimeError: the device has no memory for it.
        """

    def pin(self, nbytes: int) -> torch.Tensor:
        """Return pinned uint8 memory of the host.

        Raises:
            RuntimeError: the host has no memory for it.
        """

    def free_bytes(self) -> int:
        """Return the bytes of device memory that no process and no cache of torch's allocator holds."""


Devices = Callable[[torch.device], Device | None]  # None for memory that the host reads without a transfer


class CudaDevice:
    """A CUDA (or ROCm) device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.side = torch.cuda.Stream(device)

    def training(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def run(self, stream: Any, operation: Callable[[], Any]) -> None:
        with torch.cuda.stream(stream):
            operation()

    def transfer(self, stream: Any, pairs: Sequence[Pair]) -> list[Event]:
        events: list[Event] = []
        with torch.cuda.stream(stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
                events.append(self.record(stream))
        return events

    def record(self, stream: Any) -> torch.cuda.Event:
        event = torch.cuda.Event(blocking=True)  # a thread that waits for it sleeps instead of spinning
        event.record(stream)
        return event

    def allocate(self, nbytes: int) -> torch.Tensor:
        memory = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        memory.record_stream(self.side)
        return memory

    def pin(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        return int(free)


def cuda_device(device: torch.device) -> Device | None:
    """Return the streams of a CUDA device; None for any other device."""
    return CudaDevice(device) if device.type == "cuda" else None


Wanted = tuple[torch.Tensor, Bytes]  # a dense tensor of the device, and where its bytes go


class _Load(NamedTuple):
    """The bytes that a window copies at once.

    Attributes:
        prepare: enqueued on training's stream before the transfer; None if there is nothing to do.
        source: device memory; None for the window's own.
        targets: ranges of the window, and where they go.
        nbytes: of the window that are used.
    """

    prepare: Callable[[torch.Tensor], Any] | None
    source: torch.Tensor | None
    targets: list[tuple[int, Bytes]]
    nbytes: int


class _Pane:
    """One of the two windows."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.flat, self.pinned = device.allocate(nbytes), device.pin(nbytes)
        self.data = flat_bytes(self.pinned)
        self.load: _Load | None = None  # on its way
        self.arrived: Event | None = None

    def empty(self) -> None:
        """Wait for what is on its way and copy it to where it goes."""
        load, self.load = self.load, None
        if load is None or self.arrived is None:
            return
        self.arrived.synchronize()
        for start, target in load.targets:
            np.copyto(target, self.data[start : start + target.nbytes])


class Window:
    """The two windows of one device."""

    def __init__(self, device: Device, nbytes: int) -> None:
        """Allocate them.

        Raises:
            RuntimeError: there is no memory.
        """
        self._device, self._nbytes = device, nbytes
        self._panes = [_Pane(device, nbytes) for _ in range(2)]

    def fetch(self, wanted: Sequence[Wanted]) -> None:
        """Copy tensors to the host, each in C order, and wait for them.

        Raises:
            RuntimeError: the device failed.
        """
        device, training = self._device, self._device.training()
        turn = 0
        try:
            for load in self._loads(wanted):
                pane = self._panes[turn]
                turn = 1 - turn
                pane.empty()
                if load.prepare is not None:
                    device.run(training, partial(load.prepare, pane.flat))
                source = pane.flat[: load.nbytes] if load.source is None else load.source
                device.side.wait_event(device.record(training))
                (pane.arrived,) = device.transfer(device.side, [(pane.pinned[: load.nbytes], source)])
                pane.load = load
            self._panes[turn].empty()
            self._panes[1 - turn].empty()
        finally:
            for pane in self._panes:
                pane.load = None

    def _loads(self, wanted: Sequence[Wanted]) -> Iterator[_Load]:
        small: list[Wanted] = []
        for tensor, target in wanted:
            if target.nbytes > self._nbytes:
                yield from self._pieces(tensor.detach(), target)
            elif target.nbytes:
                small.append((tensor.detach(), target))
        places = TensorOffsets([Form(tensor.dtype, tuple(tensor.shape)) for tensor, _ in small])
        for run in places.rounds(self._nbytes - 16):  # a round may begin that much before its first tensor
            base = places.base(run.start)
            if places.stop(run[-1]) - base > self._nbytes:  # one tensor, nearly as large as the window
                yield from self._pieces(*small[run.start])
                continue
            targets = [(places.starts[i] - base, small[i][1]) for i in run]
            yield _Load(partial(_gather, places, run, [small[i][0] for i in run]), None, targets, places.stop(run[-1]) - base)

    def _pieces(self, tensor: torch.Tensor, target: Bytes) -> Iterator[_Load]:
        prepare: Callable[[torch.Tensor], Any] | None = None
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            ordered = self._device.allocate(target.nbytes).view(tensor.dtype).view(tensor.shape)
            prepare = partial(_copy, ordered, tensor)
            tensor = ordered
        memory = tensor.reshape(-1).view(torch.uint8)
        for start in range(0, target.nbytes, self._nbytes):
            part = target[start : start + self._nbytes]
            yield _Load(prepare, memory[start : start + part.nbytes], [(0, part)], part.nbytes)
            prepare = None


def _gather(places: TensorOffsets, run: range, sources: list[torch.Tensor], flat: torch.Tensor) -> None:
    base = places.base(run.start)
    Gather([places.view(flat, i, base) for i in run], sources).copy(sources)


def _copy(target: torch.Tensor, source: torch.Tensor, _: torch.Tensor) -> None:
    target.copy_(source)
