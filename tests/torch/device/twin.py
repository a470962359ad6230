"""The twin of a GPU: the same streams and events, on host memory.

Work of the side stream is done as late as events allow, or in an order that the test draws: so code that lacks a wait is
caught with certainty, or by a search, instead of now and then on a real device. Training's stream is done at once (its kernels
are torch's own, on the CPU), or drawn like the other where the test enqueues all of its work.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tranlogs_torch.device.streams import Event, Pair

UNWRITTEN = 0xA5  # what memory of the host holds before a transfer has come


class TwinStream:
    """Work in order. An operation gives False if it cannot be done yet."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.work: deque[Callable[[], bool]] = deque()
        self.enqueued = self.done = 0

    def put(self, operation: Callable[[], bool]) -> None:
        self.work.append(operation)
        self.enqueued += 1

    def wait_event(self, event: TwinEvent) -> None:
        with self.twin.lock:
            self.put(lambda: event.is_reached)
            self.twin.settle()

    def step(self) -> bool:
        """Do the next operation; False if there is none, or it waits."""
        if not self.work or not self.work[0]():
            return False
        self.work.popleft()
        self.done += 1
        return True


class TwinEvent:
    """All that was enqueued on a stream before it."""

    def __init__(self, stream: TwinStream) -> None:
        self.stream, self.position = stream, stream.enqueued

    @property
    def is_reached(self) -> bool:
        return self.stream.done >= self.position

    def synchronize(self) -> None:
        twin = self.stream.twin
        with twin.lock:
            twin.waited_in.append(threading.current_thread().name)
            if twin.fails:
                raise RuntimeError("the device failed")
            twin.reach(self)


class Twin:
    """A device.

    Args:
        is_training_eager: do the work of training's stream when it is enqueued.
        free: bytes of device memory.

    Attributes:
        draw: chooses which of the streams goes on where either can; None lets the side stream wait.
        fails: what waits on the host raises.
        allocated, pinned: sizes of what was asked for.
        transfers: bytes of each.
        waited_in: names of the threads that waited.
    """

    def __init__(self, *, is_training_eager: bool = True, free: int = 1 << 30) -> None:
        self.lock = threading.RLock()
        self.side, self._training = TwinStream(self), TwinStream(self)
        self._is_training_eager, self._free = is_training_eager, free
        self.draw: Callable[[], bool] | None = None
        self.fails = False
        self.allocated: list[int] = []
        self.pinned: list[int] = []
        self.transfers: list[int] = []
        self.waited_in: list[str] = []

    def training(self) -> TwinStream:
        return self._training

    def run(self, stream: Any, operation: Callable[[], Any]) -> None:
        def done() -> bool:
            operation()
            return True

        with self.lock:
            stream.put(done)
            self.settle()

    def transfer(self, stream: Any, pairs: Sequence[Pair]) -> list[Event]:
        events: list[Event] = []
        for target, source in pairs:
            assert target.numel() == source.numel()
            self.transfers.append(target.nbytes)
            self.run(stream, lambda target=target, source=source: target.copy_(source))  # type: ignore[misc]
            events.append(self.record(stream))
        return events

    def record(self, stream: Any) -> TwinEvent:
        with self.lock:
            return TwinEvent(stream)

    def allocate(self, nbytes: int) -> torch.Tensor:
        if nbytes > self._free:
            raise RuntimeError("out of memory")
        self._free -= nbytes
        self.allocated.append(nbytes)
        return torch.full((nbytes,), UNWRITTEN, dtype=torch.uint8)

    def pin(self, nbytes: int) -> torch.Tensor:
        self.pinned.append(nbytes)
        return torch.full((nbytes,), UNWRITTEN, dtype=torch.uint8)

    def free_bytes(self) -> int:
        return self._free

    def settle(self) -> None:
        """Do what is done at once, and some more if the test draws."""
        if self._is_training_eager:
            while self._training.work:
                if not self._training.step():  # it waits for the side stream
                    self._go_on(self.side)
        while self.draw is not None and self.draw():
            first, second = (self.side, self._training) if self.draw() else (self._training, self.side)
            if not first.step():
                second.step()

    def reach(self, event: TwinEvent) -> None:
        """Do the work before an event, and of the other stream only what that work waits for."""
        stream = event.stream
        other = self._training if stream is self.side else self.side
        while not event.is_reached:
            if not stream.step():
                self._go_on(other)

    def finish(self) -> None:
        """Do all work."""
        with self.lock:
            for stream in (self._training, self.side):
                self.reach(TwinEvent(stream))

    def _go_on(self, stream: TwinStream) -> None:
        assert stream.step(), "the streams wait for each other"


def devices(twin: Twin) -> Callable[[torch.device], Twin | None]:
    """The CPU as a device with streams."""
    return lambda device: twin if device.type == "cpu" else None
