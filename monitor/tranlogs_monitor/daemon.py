"""The daemon, which watches runs and folders of runs until it is stopped.

One thread evaluates the journals in turn. A journal that cannot be read or written now is logged once and tried again; it
stops neither the daemon nor the watch of other journals.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tranlogs.base.clock import Clock
from tranlogs.base.errors import LogUnavailable, NotARun, RunInUse, TranLogsError, UsageError, error_text
from tranlogs.journal import JournalPaths, read_owner
from tranlogs.journal.owner_lock import OwnerLock
from tranlogs.shipping import Archiver, Throttle, journal_prefix
from tranlogs.stores import TimeoutStore, open_store

from .settings import DaemonSettings
from .watching.watch import Evaluation, JournalWatch


def lock_journal(folder: Path) -> OwnerLock:
    """Lock a journal for this monitor.

    Raises:
        UsageError: another monitor watches it, which the message names, or this process may not write in the folder.
    """
    try:
        return OwnerLock(folder, "monitor")
    except RunInUse as error:
        raise UsageError(
            f"{folder}: process {error.pid} on {error.host} monitors it; --set wait=true takes over when that process ends"
        ) from None
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise UsageError(
            f"{folder}: this process may not write in the folder ({error.strerror}), and a monitor locks and prunes the run. "
            "Run it as the user that owns the folder, or give this user permission to write there"
        ) from None


_log = logging.getLogger(__name__)

_SHARE_MAX = 0.05  # the largest share of the daemon's time for the evaluations of one journal
_IDLE_EVALUATIONS = 3  # A journal counts as settled after this number of evaluations in a row that did nothing.


@dataclass(slots=True)
class _Watched:
    """A journal that is being watched.

    Attributes:
        watch: evaluates the journal.
        lock: the monitor's lock of the journal; None in a dry run.
        archiver: ships the journal; None if there is no store.
        next_at: time of the next evaluation, in seconds of the monotonic clock.
        problem: why the last evaluation failed; "" if it did not.
        settled: number of evaluations in a row that found no trainer and nothing to do.
    """

    watch: JournalWatch
    lock: OwnerLock | None
    archiver: Archiver | None = None
    next_at: float = 0.0
    problem: str = ""
    settled: int = 0

    @property
    def is_shipping(self) -> bool:
        """True if something is still to be sent to the store."""
        progress = None if self.archiver is None else self.archiver.progress()
        return progress is not None and bool(progress.items_left or progress.problem)

    def close(self) -> None:
        """Stop shipping and watching, and release the lock."""
        if self.archiver is not None:
            self.archiver.close()
        self.watch.close()
        if self.lock is not None:
            self.lock.release()


class Daemon:
    """Watches journals: evaluates them in turn, prunes and ships them.

    Args:
        roots: runs, folders of runs, or single journals (RUN/rank0).
        settings: the settings for all journals.
        find: returns the journals below a root.
        on_evaluation: called with each evaluation, or with the reason why a journal could not be evaluated.
        on_removed: called with the folder of a journal that does not exist any more.
        clock: returns the time of evaluations.

    Raises:
        StoreRefused: the store's address is wrong.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        settings: DaemonSettings,
        *,
        find: Callable[[Path], list[JournalPaths]],
        on_evaluation: Callable[[Evaluation | str, JournalPaths], None] = lambda evaluation, paths: None,
        on_removed: Callable[[Path], None] = lambda folder: None,
        clock: Clock | None = None,
    ) -> None:
        self._roots, self._settings, self._find = roots, settings, find
        self._on_evaluation, self._on_removed = on_evaluation, on_removed
        self._clock = clock or Clock()
        self._watched: dict[Path, _Watched] = {}
        self._store_settings = None if settings.is_dry_run else settings.store
        if (store := self._store_settings) is not None:  # opened once, and shared by the journals
            self._store = TimeoutStore(open_store(store.url), store.stall_seconds)
            self._throttle = Throttle(store.bytes_per_second, store.senders)
        self._stop = threading.Event()
        self._has_reported_no_runs = False
        self._refused: dict[Path, str] = {}  # journals that cannot be watched, and why
        self._unreadable: dict[Path, str] = {}  # roots that cannot be read, and why

    def stop(self) -> None:
        """Make `run` return after the current evaluation. Any thread or signal handler may call it."""
        self._stop.set()

    @property
    def is_stopped(self) -> bool:
        """True once `stop` was called."""
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
    def obstacles(self) -> list[str]:
        """Why roots cannot be read, or journals cannot be watched."""
        return [*self._unreadable.values(), *self._refused.values()]

    @property
    def is_settled(self) -> bool:
        """True if no journal has a trainer, and several evaluations in a row found nothing to do."""
        return all(watched.settled >= _IDLE_EVALUATIONS for watched in self._watched.values())

    def evaluate(self) -> int:
        """Evaluate the journals that are due; return the number of journals that could not be evaluated.

        Raises:
            UsageError: another monitor watches a journal, and waiting for it is not allowed.
        """
        self._update_watched()
        failed = 0
        for paths, watched in list(self._watched.items()):
            if self._clock.monotonic() >= watched.next_at and not self._stop.is_set():
                failed += not self._evaluate(paths, watched)
        return failed

    def close(self) -> None:
        """Release all journals."""
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()
        if self._store_settings is not None:
            self._store.close()

    def _update_watched(self) -> None:
        """Drop journals that do not exist any more, and watch new ones."""
        found = self._find_all()
        for folder in self._watched.keys() - found.keys():
            self._watched.pop(folder).close()
            self._on_removed(folder)
            _log.info("%s: does not exist any more", folder)
        if not found and not self._unreadable and not self._has_reported_no_runs:
            self._has_reported_no_runs = True
            _log.warning("%s: no run found yet; looking again at each evaluation", ", ".join(map(str, self._roots)))
        for folder in found.keys() - self._watched.keys():
            self._watch(found[folder])

    def _find_all(self) -> dict[Path, JournalPaths]:
        """Return the journals below all roots, by folder. If a root cannot be read, the known journals stay."""
        found: dict[Path, JournalPaths] = {}
        self._unreadable.clear()
        for root in self._roots:
            try:
                found |= {paths.folder: paths for paths in self._find(root)}
            except OSError as error:
                self._unreadable[root] = f"{root}: it cannot be read ({error_text(error)})"
                _log.warning("%s: cannot be read now: %s", root, error_text(error))
                found |= {folder: watched.watch.paths for folder, watched in self._watched.items()}
        return found

    def _watch(self, paths: JournalPaths) -> None:
        """Begin to watch a journal. If it cannot be watched, it is tried again at each evaluation.

        Raises:
            UsageError: another monitor watches a journal that was named by the user.
        """
        folder = paths.folder
        try:
            lock = self._lock(folder)
            if lock is None and not self._settings.is_dry_run:
                return
            archiver = self._start_archiver(paths)
        except (UsageError, LogUnavailable, OSError) as error:
            if self._is_named(folder) and isinstance(error, UsageError):
                raise
            if self._refused.get(folder) != error_text(error):
                self._refused[folder] = error_text(error)
                _log.warning("%s: cannot watch: %s", folder, error_text(error))
            return
        self._refused.pop(folder, None)
        watch = JournalWatch(paths, self._settings, self._clock)
        self._watched[folder] = _Watched(watch, lock, archiver)
        _log.info("%s: watching", folder)

    def _start_archiver(self, paths: JournalPaths) -> Archiver | None:
        """Start to ship a journal if there is a store."""
        if self._store_settings is None:
            return None
        shipping = self._store_settings.shipping
        archiver = Archiver(paths, self._store, journal_prefix(paths), shipping, self._clock, self._throttle)
        archiver.start()
        return archiver

    def _is_named(self, folder: Path) -> bool:
        """Return True if the user named this journal or its run, so that the daemon must not continue without it."""
        named = [root.absolute() for root in self._roots]
        return folder.absolute() in named or folder.absolute().parent in named

    def _lock(self, folder: Path) -> OwnerLock | None:
        """Lock a journal for this monitor; return None in a dry run, or if another monitor has the lock and may keep it."""
        if self._settings.is_dry_run:
            return None
        try:
            return lock_journal(folder)
        except UsageError:
            if not self._settings.waits:
                raise
            return None

    def _evaluate(self, folder: Path, watched: _Watched) -> bool:
        problem, took, is_idle = "", 0.0, is_ownerless(folder)
        try:
            if watched.lock is not None:
                watched.lock.keep()
            evaluation = watched.watch.evaluate()
            took = evaluation.seconds
            if evaluation.sealed and watched.archiver is not None:  # Ship the log of a dead trainer at once.
                watched.archiver.wake()
            is_idle = is_idle and evaluation.did_nothing
            self._on_evaluation(evaluation, watched.watch.paths)
        except (TranLogsError, OSError, MemoryError) as error:
            problem = error_text(error)
            self._on_evaluation(problem, watched.watch.paths)
        if problem and problem != watched.problem:
            _log.warning("%s: cannot watch now: %s; trying again", folder, problem)
        elif watched.problem and not problem:
            _log.info("%s: watching again", folder)
        watched.problem = problem
        is_idle = is_idle and not watched.is_shipping
        watched.settled = watched.settled + 1 if is_idle else 0
        watched.next_at = self._clock.monotonic() + max(self._settings.interval_seconds, took / _SHARE_MAX)
        return not problem

    def _seconds_to_next(self) -> float:
        now = self._clock.monotonic()
        soonest = min((watched.next_at for watched in self._watched.values()), default=now + self._settings.interval_seconds)
        return min(max(soonest - now, 0.0), self._settings.interval_seconds)


def is_ownerless(folder: Path) -> bool:
    """Return True if no trainer writes the journal."""
    owner = read_owner(folder)
    return owner is None or not owner.is_alive


def find_watched_journals(root: Path, find_journals: Callable[[Path], list[JournalPaths]]) -> list[JournalPaths]:
    """Return the journals of a run, or of all runs in a folder; [] if there are none yet."""
    try:
        return find_journals(root)
    except NotARun:
        pass
    found: list[JournalPaths] = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        try:
            found += find_journals(folder) if folder.is_dir() else []
        except NotARun:
            continue
    return found
