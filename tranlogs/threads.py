"""Threads that may be refused: where a limit on processes or memory is reached, no new one can be started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .errors import LogUnavailable


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
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise LogUnavailable(f"no thread can be started ({error}): memory or the number of processes is used up") from error
