"""Lets the training thread into its journal, until another thread shuts it out for good: the process is about to end."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ..threads import WaitableLock

if TYPE_CHECKING:
    from .journal import Journal

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Gate:
    """See the module. One thread passes in and out; another one may shut it, once.

    Args:
        is_amid: whether a record is being written. The calls that finish it come through a gate that is shut.
    """

    def __init__(self, is_amid: Callable[[], bool]) -> None:
        self._is_amid = is_amid
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
                self._changed.notify_all()
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
        if self._shut_by is None or self._shut_by == threading.get_ident() or os.getpid() != self._pid:
            return False
        return self._depth == 0 and not self._is_amid()

    def shut(self, seconds: float) -> bool:
        """Whoever comes from now on waits for ever, but for this thread. False if somebody is still inside after `seconds`."""
        end = time.monotonic() + seconds
        with self._changed:
            self._shut_by = threading.get_ident()
            while self._depth or self._is_amid():
                if (left := end - time.monotonic()) <= 0:
                    return False
                self._changed.wait(min(left, 0.05))  # a record that is dropped tells nobody
            return True


def gated(method: Callable[Concatenate[Journal, _P], _R]) -> Callable[Concatenate[Journal, _P], _R]:
    """A method of the journal that writes, or changes where it writes."""

    @functools.wraps(method)
    def through(self: Journal, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self.gate:
            return method(self, *args, **kwargs)

    return through
