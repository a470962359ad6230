"""Shipping of a journal to a store in the background: one thread decides, and a few threads send.

In each turn the deciding thread reads the catalog, schedules uploads, publishes a manifest when an upload is complete, asks
the store which objects are durable, and deletes objects that the store need not keep. The catalog follows the store: the
watermarks `archived` and `persisted`, and the journal's copy of the manifest, are never ahead of the newest manifest.

A sending thread begins when there is work and ends when there is none, or when the store fails. A store that fails is tried
again after pauses that grow. Training and pruning never wait for it. Any other error, which is one of this program, is recorded
in the same way, so that shipping does not end before `close`.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from ..base.clock import Clock
from ..base.config import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN
from ..base.errors import CorruptCheckpoint, CorruptRecord, StoreRefused, StoreUnavailable, TranLogsError, error_text
from ..base.threads import WaitableLock, start_thread
from ..catalog import Catalog, CheckpointRow, SegmentRow
from ..journal import JournalPaths
from ..retention.keep_policy import KeepLatest, RetentionPolicy
from ..stores import STALL_SECONDS, Store, TimeoutStore, open_store
from .inventory import GroupSteps, Inventory
from .manifest import ShippedItem, journal_prefix, name_of
from .plan import JournalContents, plan_expiry, plan_uploads
from .store_rows import StoreRows
from .upload import Part, Throttle, Upload

_log = logging.getLogger(__name__)
_user_log = logging.getLogger("tranlogs")

LAG_SECONDS = 10.0  # Segments of this age are sealed, so that the store trails the log by little more.
_DURABLE_SECONDS = 20.0  # `close` waits for this time for the watermark `persisted` to move.

_FAILURES = (TranLogsError, OSError, MemoryError)  # of stores, disks and memory; others are errors of this program
_TURN_SECONDS = 1.0
_DOUBLINGS_MAX = 10
_EXCLUDED_SECONDS = 600.0  # an item that could not be opened is tried again after this time

_Activity = Literal["turn", "send"]  # of the deciding thread, or of a sending thread


@dataclass(frozen=True, slots=True)
class ShippingSettings:
    """Settings of the shipping of a journal.

    Attributes:
        lag_seconds_max: age at which an open segment is sealed, so that it can be sent; None leaves sealing to the trainer.
        persist_seconds: time after which the store is asked again to make an object durable.
        keep: decides which checkpoints stay in the store. The log after the oldest of them stays, too.
        takes_over: True to continue after another writer's manifest.
    """

    lag_seconds_max: float | None = None
    persist_seconds: float = 120.0
    keep: RetentionPolicy = field(default_factory=KeepLatest)
    takes_over: bool = False


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Settings of the store to which a monitor ships all its journals.

    Attributes:
        url: address of the store. Each run has a folder with its name in the store.
        bytes_per_second: bandwidth of all journals together; None for no limit.
        senders: number of parts that are sent at once, of all journals together.
        stall_seconds: time without a byte after which a call is abandoned.
    """

    url: str
    shipping: ShippingSettings = field(default_factory=ShippingSettings)
    bytes_per_second: float | None = None
    senders: int = 2
    stall_seconds: float = STALL_SECONDS


@dataclass(frozen=True, slots=True)
class ShippingProgress:
    """Progress of the shipping of a journal: what is still to be sent, and the steps of the watermarks.

    `problem` is "" while shipping proceeds. With `is_refused`, trying again would not help.
    """

    items_left: int
    bytes_left: int
    archived: int
    persisted: int
    problem: str = ""
    is_refused: bool = False


class Archiver:
    """Ships one journal: `start` begins in the background, `close` ends; `run_once` takes a single turn without a thread.

    An archiver holds the journal's lock for shipping: a second one, in this process or another, waits until the first has
    ended. Calls of the store must end in bounded time (`TimeoutStore`). The throttle limits the sending threads of this journal
    and of others.
    """

    def __init__(
        self,
        paths: JournalPaths,
        store: Store,
        prefix: str,
        settings: ShippingSettings,
        clock: Clock,
        throttle: Throttle | None = None,
    ) -> None:
        self._paths, self._store, self._prefix, self._settings, self._clock = paths, store, prefix, settings, clock
        self._throttle = throttle or Throttle()
        self._rows = StoreRows(paths, store.url, clock)
        self._inventory = Inventory(
            paths, self._rows, store, prefix, clock, takes_over=settings.takes_over, persist_seconds=settings.persist_seconds
        )
        self._group = GroupSteps(store, prefix, clock)
        self._thread: threading.Thread | None = None
        self._changed = WaitableLock()  # guards what follows
        self._uploads: dict[str, Upload] = {}  # the most urgent first
        self._senders = 0  # sending threads
        self._retries = _RetryState()
        self._excluded: dict[str, float] = {}  # items that could not be opened, and until when each is left out
        self._unreported: dict[str, str] = {}  # items that were excluded since the last turn, and why
        self._is_stopped, self._is_woken = False, False

    # The deciding thread.

    def start(self) -> None:
        """Ship in the background until `close`."""
        self._thread = start_thread("tranlogs-archive", self._run)

    def close(self) -> None:
        """Stop. Unfinished uploads are abandoned, and sent again when the journal is shipped next."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        with self._changed:
            self._changed.wait_for(lambda: not self._senders, timeout=5.0)
        for upload in self._uploads.values():
            upload.close()
        self._rows.catalog.close()
        self._inventory.close()

    def wait(self, seconds: float = 0.2) -> None:
        """Wait until an upload has moved, or the time is up; for a caller of `run_once`."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """Take the next turn now."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def progress(self) -> ShippingProgress:
        """Return the progress of shipping, without taking a turn."""
        with self._changed:
            rows = [upload.row for upload in self._uploads.values()]
            nbytes = sum(row.used_bytes if isinstance(row, SegmentRow) else row.nbytes for row in rows)
            problem, is_refused = self._retries.problem, self._retries.is_refused
            return ShippingProgress(len(rows), nbytes, *self._rows.marks, problem, is_refused)

    def has_shipped(self, names: Collection[str]) -> bool:
        """Return True if none of the named items is still to be sent, and the store calls those durable that it holds."""
        with self._changed:
            if not self._uploads.keys().isdisjoint(names):
                return False
        held = [item for name, item in self._inventory.shipped.items() if name in names]
        return all(item.is_durable or item.is_lost for item in held)

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                self.run_once()
            except Exception as error:
                self._note_failure("turn", error)
                with suppress(Exception):  # the same error again; the next turn writes it
                    self._rows.write_problem(self._retries.problem)
            with self._changed:
                self._changed.wait_for(self._has_work, _TURN_SECONDS)
                self._is_woken = False

    def _has_work(self) -> bool:
        return self._is_stopped or self._is_woken or any(upload.is_complete for upload in self._uploads.values())

    def run_once(self) -> ShippingProgress:
        """Take one turn, and return the progress. Errors of the store are logged and recorded, not raised."""
        try:
            if self._clock.monotonic() >= self._retries.resume_at:
                self._run_turn()
                self._note_success("turn")
        except _FAILURES as error:
            self._note_failure("turn", error)
        self._rows.write_problem(self._retries.problem)
        return self.progress()

    def _run_turn(self) -> None:
        inventory, settings = self._inventory, self._settings
        contents = inventory.read_contents()
        self._report_exclusions(contents)
        inventory.attach()
        if settings.lag_seconds_max is not None:
            self._rows.request_seals(settings.lag_seconds_max)
        arrived = self._take_completed()
        common = self._group.read_common(contents)
        expired = plan_expiry(inventory.shipped, settings.keep, contents.timelines, common)
        if arrived or expired or inventory.is_stale(contents):
            try:
                inventory.publish(contents, arrived, expired)
            except StoreUnavailable:  # A store that takes nothing can still be asked what it has lost.
                inventory.check_items(contents)
                raise
        with self._changed:
            in_flight = [name for upload in self._uploads.values() for name in upload.sent_objects()]
        inventory.check_store(contents, in_flight)
        excluded = self._current_exclusions()
        self._schedule(plan_uploads(contents, inventory.shipped, settings.keep, excluded, common))
        inventory.write_marks(contents)

    def _take_completed(self) -> list[ShippedItem]:
        with self._changed:
            done = [upload for upload in self._uploads.values() if upload.is_complete]
            for upload in done:
                del self._uploads[upload.name]
        now = self._clock.now()
        arrived = [upload.to_item(now) for upload in done]
        for upload in done:
            upload.close()
        return arrived

    def _schedule(self, rows: list[SegmentRow | CheckpointRow]) -> None:
        with self._changed:
            before = self._uploads
            self._uploads = {}
            for row in rows:
                name = name_of(row)
                self._uploads[name] = before.pop(name) if name in before else Upload(row, self._paths.folder)
            self._uploads |= {name: upload for name, upload in before.items() if upload.is_complete}
            work = sum(upload.work for upload in self._uploads.values())
            for _ in range(min(work, self._throttle.senders + 1 - self._senders)):
                start_thread("tranlogs-send", self._send)
                self._senders += 1
        for upload in before.values():
            if not upload.is_complete:  # not scheduled any more
                upload.close()
                for name in upload.sent_objects():
                    self._store.delete(name)

    # The sending threads.

    def _send(self) -> None:
        """Do what is most urgent, until nothing is left or the store fails."""
        try:
            while (found := self._claim()) is not None:
                self._process(*found)
                with self._changed:
                    self._changed.notify_all()
        except Exception as error:
            self._note_failure("send", error)
        finally:
            with self._changed:
                self._senders -= 1
                self._is_woken |= any(upload.work for upload in self._uploads.values())  # The next turn starts a thread again.
                self._changed.notify_all()

    def _claim(self) -> tuple[Upload, Part | Literal["open"]] | None:
        """Return the most urgent piece of work; None to end the thread."""
        with self._changed:
            if self._is_stopped or not self._inventory.is_attached or self._clock.monotonic() < self._retries.resume_at:
                return None
            for upload in self._uploads.values():
                claimed = upload.claim()
                if claimed is not None:
                    return upload, claimed
            return None

    def _process(self, upload: Upload, claimed: Part | Literal["open"]) -> None:
        """Open an upload, or send a part of it. An item that is damaged here, or cannot be opened, is excluded."""
        try:
            if claimed == "open":
                upload.open()
                self.wake()  # so that other threads help with its parts
            else:
                with self._throttle.slots:
                    upload.send(claimed, self._store, self._prefix, self._inventory.writer, self._throttle)
                self._note_success("send")
        except Exception as error:
            is_unsound = claimed == "open" or isinstance(error, (CorruptRecord, CorruptCheckpoint, FileNotFoundError))
            if is_unsound:
                self._exclude(upload, error)
            if not is_unsound or not isinstance(error, _FAILURES):
                raise

    # Items that cannot be opened.

    def _exclude(self, upload: Upload, error: BaseException) -> None:
        with self._changed:
            self._uploads.pop(upload.name, None)
            self._excluded[upload.name] = self._clock.monotonic() + _EXCLUDED_SECONDS
            self._unreported[upload.name] = error_text(error)

    def _current_exclusions(self) -> list[str]:
        with self._changed:
            now = self._clock.monotonic()
            self._excluded = {name: until for name, until in self._excluded.items() if until > now}
            return list(self._excluded)

    def _report_exclusions(self, contents: JournalContents) -> None:
        """Log the items that could not be opened. An item that is not listed any more was pruned, which is not a problem."""
        with self._changed:
            unreported, self._unreported = self._unreported, {}
        for name, why in unreported.items():
            if name in contents.items:
                _log.warning("%s: cannot ship %s now: %s", self._paths.folder, name, why)
            else:
                _log.info("%s: %s was pruned before it was shipped", self._paths.folder, name)

    # Failures of the store.

    def _note_success(self, activity: _Activity) -> None:
        with self._changed:
            if self._retries.note_success(activity, is_idle=not self._uploads):
                _log.info("%s: shipping to %s again", self._paths.folder, self._store.url)

    def _note_failure(self, activity: _Activity, error: BaseException) -> None:
        """Record a failure and the time of the next attempt. Log it unless it was logged before."""
        with self._changed:
            is_new = self._retries.note_failure(activity, error, self._clock.monotonic())
            problem = self._retries.problem
        if is_new:
            trace = None if isinstance(error, _FAILURES) else error
            _log.warning("%s: cannot ship now, trying again later: %s", self._paths.folder, problem, exc_info=trace)


class _RetryState:
    """The last failure of a journal's shipping, and the time of the next attempt on the monotonic clock.

    Pauses double with each failure. `problem` and `is_refused` are those of `ShippingProgress`.
    """

    def __init__(self) -> None:
        self.problem, self.is_refused, self.resume_at = "", False, 0.0
        self._failing: _Activity | None = None
        self._failures = 0

    def note_success(self, activity: _Activity, *, is_idle: bool) -> bool:
        """Record a success. Return True if it ends the failure of this activity or, with nothing left to send, of any other."""
        if self._failing is None or (self._failing != activity and not is_idle):
            return False
        self.problem, self.is_refused, self._failing, self._failures = "", False, None, 0
        return True

    def note_failure(self, activity: _Activity, error: BaseException, now: float) -> bool:
        """Record a failure at the time `now`. Return True if it is not a repetition of the last one."""
        is_refused = isinstance(error, StoreRefused)
        problem = error_text(error) if isinstance(error, _FAILURES) else f"error in TranLogs ({type(error).__name__}: {error})"
        is_new = self._failing != activity or self._failures == 0 or (is_refused and self.problem != problem)
        self._failing, self.problem, self.is_refused = activity, problem, is_refused
        self._failures += 1
        doublings = min(self._failures - 1, _DOUBLINGS_MAX)
        pause = min(RETRY_SECONDS_MIN * 2**doublings, RETRY_SECONDS_MAX) * random.uniform(0.5, 1.0)
        self.resume_at = now + (RETRY_SECONDS_MAX if is_refused else pause)
        return is_new


class InProcessShipper:
    """Ships the journal that this process writes (`LoggedOptimizer(store=...)`), without a daemon.

    It does nothing if there is no store, and in forked children.

    Failures are logged as warnings and retried.

    Raises:
        StoreRefused: the store's address is wrong.
        LogUnavailable: no thread can be started.
    """

    def __init__(self, url: str | None, paths: JournalPaths) -> None:
        self._paths, self._pid = paths, os.getpid()
        self._archiver: Archiver | None = None
        if url is not None:
            self._store = TimeoutStore(open_store(url), STALL_SECONDS)
            self._archiver = Archiver(paths, self._store, journal_prefix(paths), ShippingSettings(LAG_SECONDS), Clock())
            self._archiver.start()

    def wait(self, committed: int, seconds: float) -> None:
        """Wait until the store holds a step, shipping has stalled, or the time is up. Any thread may call it."""
        if self._archiver is not None and os.getpid() == self._pid:
            self._wait_archived(self._archiver, committed, time.monotonic() + seconds)

    def close(self, committed: int, seconds: float | None = None) -> None:
        """Stop shipping, after the journal was closed at the step `committed`.

        First wait until the step is durable in the store, shipping has stalled, or the time is up.
        """
        if self._archiver is None or os.getpid() != self._pid:
            return
        try:
            end = time.monotonic() + (math.inf if seconds is None else seconds)
            if self._wait_archived(self._archiver, committed, end):
                self._wait_persisted(self._archiver, committed, end)
            self._archiver.close()
            self._store.close()
        except (TranLogsError, OSError) as error:
            _user_log.warning("%s: could not stop shipping cleanly: %s", self._paths.folder, error_text(error))

    def _wait_archived(self, archiver: Archiver, committed: int, end: float) -> bool:
        def is_stalled(now: ShippingProgress, seconds: float) -> bool:
            return seconds > STALL_SECONDS or (bool(now.problem) and seconds > STALL_SECONDS / 10)

        last = _follow(archiver, lambda now: now.archived >= committed, lambda now: now, is_stalled, end)
        if last is None:
            return True
        _user_log.warning(
            "%s: steps after %d may be missing from the store %s%s; run `tranlogs push` to ship them",
            self._paths.folder,
            max(last.archived, self._read_archived()),
            self._store.url,
            f" ({last.problem})" if last.problem else "",
        )
        return False

    def _wait_persisted(self, archiver: Archiver, committed: int, end: float) -> None:
        last = _follow(
            archiver,
            lambda now: now.persisted >= committed,
            lambda now: now.persisted,
            lambda now, seconds: seconds > _DURABLE_SECONDS,
            end,
        )
        if last is not None:
            _user_log.warning(
                "%s: steps after %d are in the store %s but not durable yet; run `tranlogs push` to wait for that",
                self._paths.folder,
                last.persisted,
                self._store.url,
            )

    def _read_archived(self) -> int:
        """Return the watermark `archived` of the catalog, which counts what earlier processes have shipped, too."""
        try:
            with Catalog.open(self._paths.folder) as catalog:
                return catalog.watermarks().archived
        except TranLogsError:
            return 0


def _follow(
    archiver: Archiver,
    is_done: Callable[[ShippingProgress], bool],
    measure: Callable[[ShippingProgress], object],
    is_stalled: Callable[[ShippingProgress, float], bool],
    end: float,
) -> ShippingProgress | None:
    """Wait until shipping is done, and return None; return the progress if it stalls or the time is up.

    `is_stalled` is asked with the seconds since `measure` last changed.
    """
    last, since = None, time.monotonic()
    while not is_done(now := archiver.progress()):
        if measure(now) != last:
            last, since = measure(now), time.monotonic()
        if is_stalled(now, time.monotonic() - since) or time.monotonic() > end:
            return now
        archiver.wake()
        archiver.wait()
    return None
