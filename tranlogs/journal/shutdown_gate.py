"""A gate that each call of the training thread to its journal passes. Another thread shuts it before the process ends."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from ..base.threads import WaitableLock


class Gated(Protocol):
    """An object whose methods pass a gate."""

    gate: ShutdownGate


_T = TypeVar("_T", bound=Gated)
_P = ParamSpec("_P")
_R = TypeVar("_R")


class ShutdownGate:
    """A gate that the training thread passes in and out, and that another thread may shut once.

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
