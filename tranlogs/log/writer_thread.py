"""The thread that writes beside the training thread, and the buffers for copies of what it writes.

With `writer="thread"` all records are queued. With "direct" the thread writes large payloads while the optimizer steps, and the
end of the step waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from ..base import lazy_numpy as np
from ..base.config import QUEUE_JOBS_MAX
from ..base.threads import WaitableLock, start_thread
from ..base.types import Array, Bytes


class BufferPool:
    """Buffers that are reused for arrays of the same size, because new memory costs more than the copy.

    Free and used buffers together never exceed the most bytes that were in use at once. Buffers of sizes that are not asked
    for again (sparse gradients) are dropped for others.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}  # by size, the least recently used first
        self._free_bytes = self._used_bytes = self._used_bytes_max = 0
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes of the free buffers."""
        return self._free_bytes

    def copy(self, array: Array) -> Array:
        """Return a copy of an array in a pooled buffer."""
        with self._lock:
            self._used_bytes += array.nbytes
            self._used_bytes_max = max(self._used_bytes_max, self._used_bytes)
            buffer = self._pop(array.nbytes) if array.nbytes in self._free else None
        if buffer is None:
            buffer = np.empty(array.nbytes, np.uint8)
        np.copyto(buffer, array.data)
        return replace(array, data=buffer)

    def give_back(self, array: Array) -> None:
        """Return the buffer of a copy that is no longer needed to the pool."""
        with self._lock:
            same = self._free.pop(array.nbytes, [])
            same.append(array.data)
            self._free[array.nbytes] = same
            self._free_bytes += array.nbytes
            self._used_bytes -= array.nbytes
            while self._free_bytes + self._used_bytes > self._used_bytes_max:
                self._pop(next(iter(self._free)))

    def _pop(self, nbytes: int) -> Bytes:
        buffers = self._free[nbytes]
        buffer = buffers.pop()
        if not buffers:
            del self._free[nbytes]
        self._free_bytes -= nbytes
        return buffer


class WriterThread:
    """Runs jobs in order in one thread. After a job has failed, later ones are dropped until `reset`.

    Attributes:
        pool: buffers for the data of jobs. A job returns its buffers.
    """

    def __init__(self, bytes_max: int) -> None:
        self.pool = BufferPool()
        self._bytes_max = bytes_max
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()
        self._changed = WaitableLock()
        self._queued_bytes = 0
        self._is_running = self._is_stopped = False
        self.failure: BaseException | None = None
        self._thread = start_thread("tranlogs-writer", self._work)

    def submit(self, nbytes: int, job: Callable[[], None]) -> None:
        """Queue a job that holds `nbytes` of copies. Wait while the queue is full."""
        with self._changed:
            while self._is_full_for(nbytes):
                self._changed.wait()
            self._jobs.append((nbytes, job))
            self._queued_bytes += nbytes
            self._changed.notify_all()

    def _is_full_for(self, nbytes: int) -> bool:
        if len(self._jobs) >= QUEUE_JOBS_MAX:  # Tiny steps never fill the queue by bytes, and a crash loses queued jobs.
            return True
        return self._queued_bytes > 0 and self._queued_bytes + nbytes > self._bytes_max

    def drain(self) -> None:
        """Wait until every job has run."""
        with self._changed:
            while self._jobs or self._is_running:
                self._changed.wait()

    def reset(self) -> BaseException | None:
        """Drain the queue, clear the failure, and return it."""
        self.drain()
        failure, self.failure = self.failure, None
        if failure is not None:
            self.pool = BufferPool()  # Jobs that were dropped have not returned their buffers.
        return failure

    def stop(self) -> None:
        """Drain the queue and end the thread."""
        self.drain()
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._is_stopped:
                    self._changed.wait()
                if not self._jobs:
                    return
                nbytes, job = self._jobs.popleft()
                self._is_running = True
            try:
                if self.failure is None:
                    job()
            except Exception as error:
                self.failure = error
            del job  # It keeps the gradients alive.
            with self._changed:
                self._queued_bytes -= nbytes
                self._is_running = False
                self._changed.notify_all()
