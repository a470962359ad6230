"""Threads, locks and a gate that are safe when no thread can be started and when Ctrl-C comes at any moment.

If a limit on processes or memory is reached, no new thread can be started. Python raises KeyboardInterrupt at any place in the
main thread. If a Python function takes a lock, that place can be between taking the lock and the block that releases it.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

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


class Gated(Protocol):
    """An object whose methods pass a gate."""

    gate: ShutdownGate


_T = TypeVar("_T", bound=Gated)
_P = ParamSpec("_P")
_R = TypeVar("_R")


class ShutdownGate:
    """A gate that each call of the training thread to its journal passes, and that another thread may shut once.

    Calls may be nested: a method that passes the gate may call another one that does. An open gate costs a counter and a flag.
    Whoever enters counts first and looks at the flag then; whoever shuts sets the flag first and looks at the counter then. So
    one of the two sees the other, and the one who enters gives way.

    Attributes:
        depth: number of calls that are inside, the nested ones included.
        shut_by: identifier of the thread that has shut the gate.
    """

    def __init__(self) -> None:
        self._changed = WaitableLock()
        self.depth = 0
        self.shut_by: int | None = None
        self._pid = os.getpid()

    def wait(self) -> None:
        """Wait forever if the gate is shut for the caller, who has just entered and is not nested in another call."""
        if os.getpid() != self._pid:  # A lock that another thread held when this process was forked is never released.
            return
        with self._changed:
            if self.depth > 1 or self.shut_by == threading.get_ident():
                return
            try:
                self.depth -= 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.shut_by is None)
            finally:
                self.depth += 1

    def leave(self) -> None:
        """Tell the thread that has shut the gate that a call has left it."""
        if os.getpid() == self._pid:
            with self._changed:
                self._changed.notify_all()

    def shut(self, seconds: float) -> bool:
        """Make every other thread that enters from now on wait forever, and wait until nobody is inside.

        Returns:
            False if a thread is still inside after `seconds`.
        """
        end = time.monotonic() + seconds
        with self._changed:
            self.shut_by = threading.get_ident()
            while self.depth > 0:
                if (left := end - time.monotonic()) <= 0:
                    return False
                self._changed.wait(left)
            return True


def gated(method: Callable[Concatenate[_T, _P], _R]) -> Callable[Concatenate[_T, _P], _R]:
    """Decorate a method so that it passes the gate of its object while it runs."""

    @functools.wraps(method)
    def pass_gate(self: _T, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        gate = self.gate
        gate.depth += 1
        try:
            if gate.shut_by is not None:
                gate.wait()
            return method(self, *args, **kwargs)
        finally:
            gate.depth -= 1
            if gate.shut_by is not None:
                gate.leave()

    return pass_gate
