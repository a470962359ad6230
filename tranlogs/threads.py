"""Threads that may be refused: where a limit on processes or memory is reached, no new one can be started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .config import THREAD_SECONDS_MAX
from .errors import LogUnavailable


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
