"""Threads and locks in a process where no thread may be had, and where Ctrl-C may come at any moment.

Where a limit on processes or memory is reached, no new thread can be started. And Python raises KeyboardInterrupt in the main
thread wherever it stands: also between taking a lock and the block that would give it back, where a Python function takes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .config import THREAD_SECONDS_MAX
from .errors import LogUnavailable


class WaitableLock(type(threading.RLock())):  # type: ignore[misc]
    """A lock that can be waited on, as `threading.Condition`; but `with` on it is of C, and no interrupt comes in between."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = threading.Condition(self)
        self.wait = self._condition.wait
        self.wait_for = self._condition.wait_for
        self.notify_all = self._condition.notify_all


class _Begun(threading.Event):
    """`Thread.start` waits for this without end, and a thread that finds no memory for its first line never sets it."""

    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(THREAD_SECONDS_MAX if timeout is None else timeout):
            raise RuntimeError("a new thread did not begin")
        return True


def start_thread(name: str, work: Callable[..., Any], *args: Any) -> threading.Thread:
    """Start a background thread, which does not keep the process alive.

    Raises:
        LogUnavailable: the system gives none.
    """
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    start(thread)
    return thread


def start(thread: threading.Thread) -> None:
    """Start a thread that was made.

    Raises:
        LogUnavailable: the system gives none.
    """
    thread._started = _Begun()  # type: ignore[attr-defined]
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise LogUnavailable(f"no thread can be started ({error}): memory or the number of processes is used up") from error


def run_uninterrupted(name: str, work: Callable[[], None]) -> None:
    """Run `work` in a thread of its own, where no Ctrl-C comes, and wait for its end.

    A Ctrl-C that comes meanwhile is raised then; a second one at once, and `work` goes on. Where no thread can be had (at the
    interpreter's end), it is run right here.
    """
    if threading.current_thread() is not threading.main_thread():
        work()
        return
    failures: list[BaseException | None] = []
    is_done = threading.Lock()

    def run() -> None:
        failure = None
        try:
            work()
        except BaseException as error:
            failure = error
        failures.append(failure)
        is_done.release()

    is_done.acquire()
    try:
        start_thread(name, run)
    except LogUnavailable:
        work()
        return
    try:
        is_done.acquire()
    except KeyboardInterrupt:
        if not failures:  # else this thread may have it: the interrupt came behind it
            is_done.acquire()
        raise
    if failures[0] is not None:
        raise failures[0]
