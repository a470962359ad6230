"""What `tranlogs monitor` runs: the entry point `monitor` of the group `tranlogs.daemons`."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tranlogs.errors import NotARun
from tranlogs.journal import JournalPaths

from .daemon import Daemon, journals_below
from .json_log import JsonFormatter
from .settings import Settings
from .watch import Seen


def watch(roots: Sequence[Path], settings: Settings, *, journals_of: Callable[[Path], list[JournalPaths]],
          is_json: bool, once: bool, show: Callable[[list[tuple[JournalPaths, Seen]]], None]) -> int:  # fmt: skip
    """Watch until SIGTERM or SIGINT; or, `once`, evaluate, show what was found, and end.

    Returns the exit code.
    """
    seen: list[tuple[JournalPaths, Seen]] = []
    daemon = Daemon(roots, settings, find=lambda root: journals_below(root, journals_of),
                    on_seen=lambda what, paths: seen.append((paths, what)) if once else None)  # fmt: skip
    with _logging_to_stderr(is_json):
        if not once:
            _run(daemon)
            return 0
        try:
            failed = daemon.evaluate()
        finally:
            daemon.close()
    if not seen and not failed:
        raise NotARun(roots[0])
    show(seen)
    return 1 if failed else 0


def _run(daemon: Daemon) -> None:
    before: dict[int, Any] = {n: signal.signal(n, lambda *_: daemon.stop()) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        daemon.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


COMMAND = watch, Settings  # what the entry point gives


@contextmanager
def _logging_to_stderr(is_json: bool) -> Iterator[None]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if is_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = [logging.getLogger(name) for name in ("tranlogs", "tranlogs_monitor")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.removeHandler(handler)
            logger.setLevel(level)
