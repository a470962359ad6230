"""What `tranlogs monitor` runs: the entry point `monitor` of the group `tranlogs.daemons`."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tranlogs.errors import NotARun, UsageError
from tranlogs.journal import JournalPaths

from .daemon import Daemon, journals_below
from .json_log import JsonFormatter
from .settings import Settings
from .watch import Seen

_log = logging.getLogger(__name__)

Find = Callable[[Path], list[JournalPaths]]


def watch(roots: Sequence[Path], settings: Settings, *, journals_of: Find, is_json: bool, once: bool, http: str | None = None,
          show: Callable[[list[tuple[JournalPaths, Seen]]], None]) -> int:  # fmt: skip
    """Watch until SIGTERM or SIGINT; or, `once`, evaluate, show what was found, and end.

    Returns the exit code.
    """
    seen: list[tuple[JournalPaths, Seen]] = []

    def note(what: Seen | str, paths: JournalPaths) -> None:
        if isinstance(what, Seen):
            seen.append((paths, what))

    def find(root: Path) -> list[JournalPaths]:
        return journals_below(root, journals_of)

    with _logging_to_stderr(is_json):
        if not once:
            _serve(roots, settings, find, http)
            return 0
        daemon = Daemon(roots, settings, find=find, on_seen=note)
        try:
            failed = daemon.evaluate()
        finally:
            daemon.close()
    if not seen and not failed:
        raise NotARun(roots[0])
    show(seen)
    return 1 if failed else 0


def _serve(roots: Sequence[Path], settings: Settings, find: Find, http: str | None) -> None:
    if http is None:
        _run(Daemon(roots, settings, find=find))
        return
    try:
        from .metrics import Metrics
    except ImportError as error:
        raise UsageError(f"--http needs prometheus-client: pip install 'tranlogs[monitor]' ({error})") from None
    from .board import Board
    from .web import WebServer, address_of

    metrics, board = Metrics(), Board(settings)
    server = WebServer(address_of(http), metrics, board)
    _log.info("the page is at http://%s:%d/", address_of(http)[0], server.port)

    def note(what: Seen | str, paths: JournalPaths) -> None:
        metrics.note(paths.folder, what if isinstance(what, Seen) else None)
        board.note(paths.folder, what)

    def forget(folder: Path) -> None:
        metrics.forget(folder)
        board.forget(folder)

    try:
        _run(Daemon(roots, settings, find=find, on_seen=note, on_gone=forget))
    finally:
        server.close()


def _run(daemon: Daemon) -> None:
    before: dict[int, Any] = {n: signal.signal(n, lambda *_: daemon.stop()) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        daemon.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


COMMAND = watch, Settings.of  # what the entry point gives


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
