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

    Calls may be nested: a method that passes the gate may call another one that does.
    """

    def __init__(self) -> None:
        self._changed = WaitableLock()
        self._depth = 0  # nested calls of the training thread
        self._shut_by: int | None = None  # identifier of a thread
        self._pid = os.getpid()

    def __enter__(self) -> None:
        if self._depth:  # A nested call, which only the thread inside the gate can make.
            self._depth += 1
            return
        with self._changed:
            while self._is_shut_for_caller():
                self._changed.wait()
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if self._depth > 1:
            self._depth -= 1
            return
        with self._changed:
            self._depth -= 1
            if self._shut_by is not None:
                self._changed.notify_all()

    def _is_shut_for_caller(self) -> bool:
        return self._shut_by is not None and self._shut_by != threading.get_ident() and os.getpid() == self._pid

    def shut(self, seconds: float) -> bool:
        """Make every other thread that enters from now on wait forever, and wait until nobody is inside.

        Returns:
            False if a thread is still inside after `seconds`.
        """
        end = time.monotonic() + seconds
        with self._changed:
            self._shut_by = threading.get_ident()
            while self._depth:
                if (left := end - time.monotonic()) <= 0:
                    return False
                self._changed.wait(left)
            return True


def gated(method: Callable[Concatenate[_T, _P], _R]) -> Callable[Concatenate[_T, _P], _R]:
    """Decorate a method so that it passes the gate of its object while it runs."""

    @functools.wraps(method)
    def pass_gate(self: _T, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self.gate:
            return method(self, *args, **kwargs)

    return pass_gate
