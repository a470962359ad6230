"""Streams, events and memory of a device, as far as staging needs them, and their form on CUDA.

All work of staging goes through `Device`, so that the same code runs in tests on host memory, where a twin decides in
which of the orders that streams and events allow the work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

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
