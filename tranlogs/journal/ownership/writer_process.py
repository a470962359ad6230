"""The process that writes a journal: its number, its lock, and the work that it does once at its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ...base.threads import run_uninterrupted
from .writer_lock import OwnerLock


class WriterProcess:
    """The process that opened a journal for writing.

    Attributes:
        lock: the journal's lock.
        pid: number of the process; a forked child has another one.
        is_closed: True once `end` was called.
    """

    def __init__(self, lock: OwnerLock) -> None:
        self.lock = lock
        self.pid = os.getpid()
        self.is_closed = False
        self._ending = threading.Lock()

    @property
    def is_caller(self) -> bool:
        """True in the process that opened the journal, False in a child that was forked from it."""
        return os.getpid() == self.pid

    def end(self, work: Callable[[], bool]) -> None:
        """Run `work` and release the lock, once. Nothing is done in a forked child, or after the lock was released.

        `work` returns True if the journal was closed in order.

        A Ctrl-C is raised when the work is done. A second Ctrl-C is raised at once; `end` may then be called again.
        """
        if not self.lock.is_held or not self.is_caller:
            return
        self.is_closed = True
        run_uninterrupted("tranlogs-end", lambda: self._end_once(work))

    def _end_once(self, work: Callable[[], bool]) -> None:
        with self._ending:
            if self.lock.is_held:
                has_closed = False
                try:
                    has_closed = work()
                finally:
                    self.lock.release(has_closed=has_closed)
