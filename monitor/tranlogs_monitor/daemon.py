"""The daemon: watches runs, and folders of runs, until it is told to stop.

One thread evaluates the journals in turn. A journal that cannot be read or written now is said once and tried again; none
of them takes the daemon down, nor another journal with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tranlogs.base.clock import Clock, SystemClock
from tranlogs.base.errors import LogUnavailable, NotARun, TranLogsError, UsageError, error_text
from tranlogs.journal import JournalPaths, read_owner
from tranlogs.journal.process.writer_lock import OwnerLock
from tranlogs.shipping import Archiver

from .compaction.compactor import Compactor
from .settings import Settings
from .watching.archiving import Archives
from .watching.lock import lock
from .watching.watch import JournalWatch, Seen

_log = logging.getLogger(__name__)

_SHARE_MAX = 0.05  # of the time, for evaluations
_EVALUATIONS_TO_END = 3  # in a row that find no trainer and nothing to do


@dataclass(slots=True)
class _Watched:
    watch: JournalWatch
    lock: OwnerLock | None
    archiver: Archiver | None = None
    next_at: float = 0.0
    problem: str = ""
    settled: int = 0  # evaluations in a row that found no trainer and nothing to do

    @property
    def is_shipping(self) -> bool:
        """Whether something is still to be sent to the store."""
        progressed = None if self.archiver is None else self.archiver.progressed()
        return progressed is not None and bool(progressed.items_left or progressed.problem)

    def close(self) -> None:
        if self.archiver is not None:
            self.archiver.close()
        self.watch.close()
        if self.lock is not None:
            self.lock.release()


class Daemon:
    """See the module.

    Args:
        roots: runs, folders of runs, or single journals (RUN/rank0).
        settings: for all of them.
        find: gives the journals below a root.
        on_seen: told of each evaluation; or in words why it could not be made.
        on_gone: told of a journal that is not there any more.
        clock: of evaluations.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        settings: Settings,
        *,
        find: Callable[[Path], list[JournalPaths]],
        on_seen: Callable[[Seen | str, JournalPaths], None] = lambda seen, paths: None,
        on_gone: Callable[[Path], None] = lambda folder: None,
        clock: Clock | None = None,
    ) -> None:
        self._roots, self._settings, self._find, self._on_seen, self._on_gone = roots, settings, find, on_seen, on_gone
        self._clock = clock or SystemClock()
        self._watched: dict[Path, _Watched] = {}
        store = None if settings.is_dry_run else settings.store
        self._archives = None if store is None else Archives(store, self._clock)
        compaction = None if settings.is_dry_run else settings.compaction
        self._compactor = None if compaction is None else Compactor(compaction, self._clock)
        self._stop = threading.Event()
        self._has_said_nothing = False
        self._refused: dict[Path, str] = {}  # journals that cannot be watched, and why

    def stop(self) -> None:
        """End `run` after the evaluation under way; from any thread, or a signal handler."""
        self._stop.set()

    @property
    def is_stopped(self) -> bool:
        """Whether it was told to end."""
        return self._stop.is_set()

    def run(self) -> None:
        """Evaluate at each interval until `stop`."""
        try:
            while not self._stop.is_set():
                self.evaluate()
                if self._settings.until_closed and self.is_settled:
                    return
                self._stop.wait(self._seconds_to_next())
        finally:
            self.close()

    @property
    def is_settled(self) -> bool:
        """Whether no journal has a trainer, and for some evaluations nothing was left to do."""
        return all(watched.settled >= _EVALUATIONS_TO_END for watched in self._watched.values())

    def evaluate(self) -> int:
        """Evaluate the journals that are due; gives how many could not be.

        Raises:
            UsageError: a journal has another monitor, and is not to be waited for.
        """
        if self._compactor is not None:
            self._compactor.poll()
        self._look_for_journals()
        failed = 0
        for paths, watched in list(self._watched.items()):
            if self._clock.monotonic() >= watched.next_at and not self._stop.is_set():
                failed += not self._evaluate(paths, watched)
        return failed

    def finish(self) -> None:
        """Wait for the checkpoint that is being made."""
        if self._compactor is not None:
            self._compactor.wait()

    def close(self) -> None:
        """Let go of all journals."""
        if self._compactor is not None:
            self._compactor.close()
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()
        if self._archives is not None:
            self._archives.close()

    def _look_for_journals(self) -> None:
        found: dict[Path, JournalPaths] = {}
        for root in self._roots:
            try:
                found |= {paths.folder: paths for paths in self._find(root)}
            except OSError as error:
                _log.warning("%s: cannot be looked at now: %s", root, error_text(error))
                found |= {folder: watched.watch.paths for folder, watched in self._watched.items()}
        for folder in self._watched.keys() - found.keys():
            self._watched.pop(folder).close()
            self._on_gone(folder)
            _log.info("%s: it is gone", folder)
        if not found and not self._has_said_nothing:
            self._has_said_nothing = True
            _log.warning("no run is in %s now; it is looked for at each evaluation", ", ".join(map(str, self._roots)))
        for folder in found.keys() - self._watched.keys():
            try:
                held = self._locked(folder)
                if held is None and not self._settings.is_dry_run:
                    continue
                archiver = self._archives.begin(found[folder]) if self._archives is not None else None
            except (UsageError, LogUnavailable, OSError) as error:  # it holds up no other; tried again at each evaluation
                if self._is_named(folder) and isinstance(error, UsageError):
                    raise
                if self._refused.get(folder) != error_text(error):
                    self._refused[folder] = error_text(error)
                    _log.warning("%s: is not watched: %s", folder, error_text(error))
                continue
            self._refused.pop(folder, None)
            watch = JournalWatch(found[folder], self._settings, self._clock, self._compactor)
            self._watched[folder] = _Watched(watch, held, archiver)
            _log.info("%s: is watched", folder)

    def _is_named(self, folder: Path) -> bool:
        """Whether a journal, or its run, was given by name: then it is no use to go on without it."""
        named = [root.absolute() for root in self._roots]
        return folder.absolute() in named or folder.absolute().parent in named

    def _locked(self, folder: Path) -> OwnerLock | None:
        if self._settings.is_dry_run:
            return None
        try:
            return lock(folder)
        except UsageError:
            if not self._settings.waits:
                raise
            return None

    def _evaluate(self, folder: Path, watched: _Watched) -> bool:
        problem, took, is_idle = "", 0.0, is_ownerless(folder)
        try:
            seen = watched.watch.evaluate()
            took = seen.seconds
            if seen.sealed and watched.archiver is not None:  # by a trainer that is dead: at once
                watched.archiver.wake()
            is_idle = is_idle and seen.did_nothing
            self._on_seen(seen, watched.watch.paths)
            if self._compactor is not None:
                self._compactor.look(watched.watch.paths, seen.rows.segments, seen.anchor, seen.rows.timelines)
        except (TranLogsError, OSError, MemoryError) as error:
            problem = error_text(error)
            self._on_seen(problem, watched.watch.paths)
        if problem and problem != watched.problem:
            _log.warning("%s: cannot be watched now: %s; it is tried again", folder, problem)
        elif watched.problem and not problem:
            _log.info("%s: is watched again", folder)
        watched.problem = problem
        is_idle = is_idle and not watched.is_shipping and (self._compactor is None or not self._compactor.is_busy)
        watched.settled = watched.settled + 1 if is_idle else 0
        watched.next_at = self._clock.monotonic() + max(self._settings.interval_seconds, took / _SHARE_MAX)
        return not problem

    def _seconds_to_next(self) -> float:
        now = self._clock.monotonic()
        soonest = min((watched.next_at for watched in self._watched.values()), default=now + self._settings.interval_seconds)
        return min(max(soonest - now, 0.0), self._settings.interval_seconds)


def is_ownerless(folder: Path) -> bool:
    """Whether no trainer writes the journal."""
    owner = read_owner(folder)
    return owner is None or not owner.is_alive


def journals_below(root: Path, journals_of: Callable[[Path], list[JournalPaths]]) -> list[JournalPaths]:
    """The journals of a run, or of all runs in a folder; none where there is nothing yet."""
    try:
        return journals_of(root)
    except NotARun:
        pass
    found: list[JournalPaths] = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            found += journals_of(folder) if folder.is_dir() else []
        except NotARun:
            continue
    return found
