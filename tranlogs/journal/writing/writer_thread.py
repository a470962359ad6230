"""A thread that runs jobs in order, from a queue bounded in bytes and in number, and pooled buffers for what its jobs hold."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...base.config import QUEUE_JOBS_MAX
from ...base.threads import WaitableLock, start_thread
from ...base.types import Array, Bytes


class BufferPool:
    """Buffers by size, reused: fresh memory costs more than the copy.

    It never holds more than was out at once: sizes that do not come again (sparse gradients) make room for others.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}  # by size, the least recently used first
        self._free_bytes = self._out_bytes = self._out_bytes_max = 0
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes of buffers that wait to be used again."""
        return self._free_bytes

    def copy(self, array: Array) -> Array:
        """A copy of an array in a pooled buffer."""
        with self._lock:
            self._out_bytes += array.nbytes
            self._out_bytes_max = max(self._out_bytes_max, self._out_bytes)
            buffer = self._pop(array.nbytes) if array.nbytes in self._free else None
        if buffer is None:
            buffer = np.empty(array.nbytes, np.uint8)
        np.copyto(buffer, array.data)
        return replace(array, data=buffer)

    def give_back(self, array: Array) -> None:
        """The copy is no longer needed."""
        with self._lock:
            same = self._free.pop(array.nbytes, [])
            same.append(array.data)
            self._free[array.nbytes] = same
            self._free_bytes += array.nbytes
            self._out_bytes -= array.nbytes
            while self._free_bytes + self._out_bytes > self._out_bytes_max:
                self._pop(next(iter(self._free)))

    def _pop(self, nbytes: int) -> Bytes:
        buffers = self._free[nbytes]
        buffer = buffers.pop()
        if not buffers:
            del self._free[nbytes]
        self._free_bytes -= nbytes
        return buffer


class WriterThread:
    """Runs jobs in order in one thread. A failed job latches; later ones are dropped until `reset`.

    Jobs give their copies back to `pool`.
    """

    def __init__(self, bytes_max: int) -> None:
        self.pool = BufferPool()
        self._bytes_max = bytes_max
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()
        self._changed = WaitableLock()
        self._queued = 0
        self._running = self._stopped = False
        self.failure: BaseException | None = None
        self._thread = start_thread("tranlogs-writer", self._work)

    def submit(self, nbytes: int, job: Callable[[], None]) -> None:
        """Queue a job that holds `nbytes` of copies; waits while the queue is full."""
        with self._changed:
            while self._is_full_for(nbytes):
                self._changed.wait()
            self._jobs.append((nbytes, job))
            self._queued += nbytes
            self._changed.notify_all()

    def _is_full_for(self, nbytes: int) -> bool:
        if len(self._jobs) >= QUEUE_JOBS_MAX:  # tiny steps never fill it by their bytes, and a crash loses what waits
            return True
        return self._queued > 0 and self._queued + nbytes > self._bytes_max

    def drain(self) -> None:
        """Wait until every job has run."""
        with self._changed:
            while self._jobs or self._running:
                self._changed.wait()

    def reset(self) -> BaseException | None:
        """Drain, forget a failure, and give it."""
        self.drain()
        failure, self.failure = self.failure, None
        if failure is not None:
            self.pool = BufferPool()  # what was dropped does not come back
        return failure

    def stop(self) -> None:
        """Drain, and end the thread."""
        self.drain()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._stopped:
                    self._changed.wait()
                if not self._jobs:
                    return
                nbytes, job = self._jobs.popleft()
                self._running = True
            try:
                if self.failure is None:
                    job()
            except Exception as error:
                self.failure = error
            with self._changed:
                self._queued -= nbytes
                self._running = False
                self._changed.notify_all()
