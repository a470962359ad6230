"""The function that `tranlogs monitor` calls; the entry point `monitor` of the group `tranlogs.daemons`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tranlogs.base.errors import NotARun, UsageError
from tranlogs.journal import JournalPaths

from .daemon import Daemon, find_watched_journals, is_ownerless
from .dashboard.access import TOKEN_NAME, Access, address_of, read_token
from .detached import start_monitor
from .json_log import JsonFormatter
from .settings import DaemonSettings
from .watching.watch import Evaluation

_log = logging.getLogger(__name__)

Find = Callable[[Path], list[JournalPaths]]


def watch(
    roots: Sequence[Path],
    settings: DaemonSettings,
    *,
    find_journals: Find,
    is_json: bool,
    once: bool,
    http: str | None = None,
    show: Callable[[list[tuple[JournalPaths, Evaluation]]], None],
) -> int:
    """Watch until SIGTERM or SIGINT; or, with `once`, evaluate every journal, show the evaluations, and return.

    Args:
        roots: runs, folders of runs, or journals.
        settings: settings of the daemon.
        find_journals: returns the journals of a run.
        is_json: True for log lines in JSON.
        once: True to evaluate once.
        http: the address on which the dashboard is served, like ":9464"; None for no dashboard.
        show: called with the evaluations after `once`.

    Returns:
        The exit code.
    """
    evaluation: list[tuple[JournalPaths, Evaluation]] = []

    def note(what: Evaluation | str, paths: JournalPaths) -> None:
        if isinstance(what, Evaluation):
            evaluation.append((paths, what))

    def find(root: Path) -> list[JournalPaths]:
        return find_watched_journals(root, find_journals)

    with _logging_to_stderr(is_json):
        if not once:
            _serve_until_closed(roots, settings, find, http)
            return 0
        daemon = Daemon(roots, settings, find=find, on_evaluation=note)
        try:
            failed = daemon.evaluate()
        finally:
            daemon.close()
    if not evaluation and not failed:
        if daemon.obstacles:
            raise UsageError("; ".join(daemon.obstacles))
        raise NotARun(roots[0])
    show(evaluation)
    return 1 if failed else 0


def _serve_until_closed(roots: Sequence[Path], settings: DaemonSettings, find: Find, http: str | None) -> None:
    """Serve; with `until_closed`, serve again if a trainer has started while the journals were being released.

    A trainer takes its lock and then looks for a monitor. The monitor releases its lock and then looks for a trainer. So one of
    them detects the other, and no run is left without a monitor.
    """
    was_stopped = _serve(roots, settings, find, http)
    while settings.until_closed and not was_stopped and not all(map(is_ownerless, _folders(roots, find))):
        try:
            was_stopped = _serve(roots, settings, find, http)
        except UsageError:  # The trainer has started another monitor.
            return


def _folders(roots: Sequence[Path], find: Find) -> list[Path]:
    return [paths.folder for root in roots for paths in find(root)]


def _serve(roots: Sequence[Path], settings: DaemonSettings, find: Find, http: str | None) -> bool:
    """Watch until the daemon ends; return True if it was stopped."""
    if http is None:
        return _run(Daemon(roots, settings, find=find))
    try:
        from .dashboard.metrics import Metrics
        from .dashboard.pages.board import Board
        from .dashboard.server import WebServer
    except ImportError as error:
        raise UsageError(
            f"--http requires Starlette, uvicorn, Jinja2 and prometheus-client: pip install 'tranlogs[monitor]' ({error})"
        ) from None
    metrics, board = Metrics(), Board(settings)
    server = WebServer(address_of(http), metrics, board, token=read_token(os.environ))

    def note(what: Evaluation | str, paths: JournalPaths) -> None:
        metrics.note(paths.folder, what if isinstance(what, Evaluation) else None)
        board.note(paths.folder, what)

    def forget(folder: Path) -> None:
        metrics.forget(folder)
        board.forget(folder)

    try:
        daemon = Daemon(roots, settings, find=find, on_evaluation=note, on_removed=forget)
        return _run(daemon, on_ready=lambda: _announce(server.url, server.access))
    finally:
        server.close()


def _announce(url: str, access: Access) -> None:
    """Log the address of the page, and which token a request must carry."""
    if access.token is None:
        _log.info("the page is at %s", url)
    else:
        _log.info("the page is at %s and requires the token of %s", url, TOKEN_NAME)


def _run(daemon: Daemon, on_ready: Callable[[], None] = lambda: None) -> bool:
    """Run a daemon until it ends; `on_ready` is called when SIGTERM and SIGINT stop it in an orderly way."""
    before: dict[int, Any] = {n: signal.signal(n, lambda *_: daemon.stop()) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        on_ready()
        daemon.run()
        return daemon.is_stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Command(NamedTuple):
    """Functions that the entry point provides to the command line, and to trainers that start a monitor."""

    watch: Callable[..., int]
    settings: Callable[..., DaemonSettings]
    start_monitor: Callable[..., int]


COMMAND = Command(watch, DaemonSettings, start_monitor)


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
