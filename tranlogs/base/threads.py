"""Threads and locks that are safe when no thread can be started and when Ctrl-C comes at any moment.

If a limit on processes or memory is reached, no new thread can be started. Python raises KeyboardInterrupt at any place in the
main thread. If a Python function takes a lock, that place can be between taking the lock and the block that releases it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .config import THREAD_SECONDS_MAX
from .errors import LogUnavailable


class WaitableLock(type(threading.RLock())):  # type: ignore[misc]
    """A lock with the methods of `threading.Condition`. `with` on it runs in C, so Ctrl-C cannot leave it held."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = threading.Condition(self)
        self.wait = self._condition.wait
        self.wait_for = self._condition.wait_for
        self.notify_all = self._condition.notify_all


class _Begun(threading.Event):
    """The event that `Thread.start` waits for, with a timeout: a thread without memory for its first line never sets it."""

    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(THREAD_SECONDS_MAX if timeout is None else timeout):
            raise RuntimeError("a new thread did not start to run")
        return True


def start_thread(name: str, work: Callable[..., Any], *args: Any) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        LogUnavailable: the system cannot start a thread.
    """
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    start(thread)
    return thread


def start(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        LogUnavailable: the system cannot start the thread.
    """
    thread._started = _Begun()  # type: ignore[attr-defined]
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise LogUnavailable(f"cannot start a thread ({error}): the limit on memory or on processes is reached") from error


def run_uninterrupted(name: str, work: Callable[[], None]) -> None:
    """Run `work` in a new thread, where Ctrl-C cannot interrupt it, and wait until it ends.

    A Ctrl-C during `work` is raised when `work` has ended. A second Ctrl-C is raised at once, and `work` continues. If no
    thread can be started (while the interpreter exits), `work` runs in this thread.
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
        if not failures:  # `work` still runs. Otherwise this thread may hold the lock already.
            is_done.acquire()
        raise
    if failures[0] is not None:
        raise failures[0]
