"""Lets the training thread into its journal, until another thread shuts it out for good: the process is about to end."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ...base.threads import WaitableLock

if TYPE_CHECKING:
    from ..journal import Journal

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ShutdownGate:
    """See the module. One thread passes in and out; another one may shut it, once."""

    def __init__(self) -> None:
        self._changed = WaitableLock()
        self._depth = 0  # calls of the training thread under way
        self._shut_by: int | None = None  # a thread
        self._pid = os.getpid()

    def __enter__(self) -> None:
        if self._depth:  # from inside: only the thread that is there comes here
            self._depth += 1
            return
        with self._changed:
            while self._is_closed_to_me():
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

    def _is_closed_to_me(self) -> bool:
        return self._shut_by is not None and self._shut_by != threading.get_ident() and os.getpid() == self._pid

    def shut(self, seconds: float) -> bool:
        """Whoever comes from now on waits for ever, but for this thread. False if somebody is still inside after `seconds`."""
        end = time.monotonic() + seconds
        with self._changed:
            self._shut_by = threading.get_ident()
            while self._depth:
                if (left := end - time.monotonic()) <= 0:
                    return False
                self._changed.wait(left)
            return True


def gated(method: Callable[Concatenate[Journal, _P], _R]) -> Callable[Concatenate[Journal, _P], _R]:
    """A method of the journal that writes, or changes where it writes."""

    @functools.wraps(method)
    def through(self: Journal, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self.gate:
            return method(self, *args, **kwargs)

    return through
