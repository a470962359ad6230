"""Shipping of a journal to a store in the background: one thread decides, and a few threads send.

In each turn the deciding thread reads the catalog, schedules uploads, publishes a manifest when an upload is complete, asks
the store which objects are durable, and deletes objects that the store need not keep. The catalog follows the store: the
watermarks `archived` and `persisted` and the rows `shipped/` are never ahead of the newest manifest.

A store that fails is tried again after pauses that grow. Training and pruning never wait for it. Any other error, which is
one of this program, is recorded in the same way, so that no thread ends before `close`.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from ...base.clock import Clock
from ...base.errors import CorruptCheckpoint, CorruptRecord, TranLogsError
from ...base.threads import WaitableLock, start_thread
from ...catalog import CheckpointRow, SegmentRow
from ...journal import JournalPaths
from ...retention.keep_policy import KeepLatest, RetentionPolicy
from ...stores import Store
from ..inventory.group_retention import GroupRetention
from ..inventory.ledger import Ledger
from ..items.item_files import FilePart
from ..items.shipping_plan import JournalContents, plan_expiry, plan_uploads
from ..items.throttle import Throttle
from ..manifest import ShippedItem
from .failures import Activity, Exclusions, RetryState
from .upload import Upload

_log = logging.getLogger(__name__)

_FAILURES = (TranLogsError, OSError, MemoryError)  # of stores, disks and memory; others are errors of this program
_TURN_SECONDS = 1.0


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
class ShippingProgress:
    """Progress of the shipping of a journal.

    Attributes:
        items_left: number of items that are still to be sent.
        bytes_left: the size of these items.
        archived: the newest step that the store holds.
        persisted: the newest step that the store calls durable.
        problem: why shipping does not proceed; "" if it does.
        is_refused: True if trying again would not help.
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
    ended.

    Args:
        paths: the journal's.
        store: where to ship; its calls must end in bounded time (`TimeoutStore`).
        prefix: the journal's place in the store, "RUN/rank0".
        settings: how to ship.
        clock: the catalog's.
        throttle: limits the sending threads of this journal and of others.
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
        self._ledger = Ledger(paths, store, prefix, clock, takes_over=settings.takes_over)
        self._group = GroupRetention(store, prefix, clock)
        self._changed = WaitableLock()
        self._uploads: dict[str, Upload] = {}  # the most urgent first
        self._exclusions, self._retries = Exclusions(), RetryState()
        self._threads: list[threading.Thread] = []
        self._is_stopped, self._is_woken = False, False

    # The deciding thread.

    def start(self) -> None:
        """Ship in the background until `close`."""
        self._threads.append(start_thread("tranlogs-archive", self._run))

    def close(self) -> None:
        """Stop. Unfinished uploads are abandoned, and sent again when the journal is shipped next."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=5.0)
        for upload in self._uploads.values():
            upload.close()
        self._ledger.close()

    def wait(self, seconds: float = 0.2) -> None:
        """Wait until an upload has moved, or the time is up; for a caller of `run_once`."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """Take the next turn now."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                self.run_once()
            except Exception as error:
                self._note_failure("turn", error)
                with suppress(Exception):  # the same error again; the next turn writes it
                    self._ledger.write_problem(self._retries.problem)
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
        self._ledger.write_problem(self._retries.problem)
        return self.progress()

    def _run_turn(self) -> None:
        ledger = self._ledger
        contents = ledger.read_contents()
        self._report_exclusions(contents)
        ledger.attach()
        if self._settings.lag_seconds_max is not None:
            ledger.request_seals(self._settings.lag_seconds_max)
        arrived = self._take_completed()
        common = self._group.read_common(contents)
        expired = plan_expiry(ledger.shipped, self._settings.keep, contents.timelines, common)
        if arrived or expired or ledger.is_stale(contents):
            ledger.publish(contents, arrived, expired)
        ledger.check_store(contents, self._settings.persist_seconds, self._in_flight())
        self._schedule(
            plan_uploads(contents, ledger.shipped, self._settings.keep, self._current_exclusions(), common)
            + ledger.plan_resends(contents)
        )
        ledger.write_marks(contents)

    def _current_exclusions(self) -> list[str]:
        with self._changed:
            return list(self._exclusions.list_current(self._clock.monotonic()))

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
                name = row.file if isinstance(row, SegmentRow) else row.name
                self._uploads[name] = before.pop(name) if name in before else Upload(row, self._paths.folder)
            self._uploads |= {name: upload for name, upload in before.items() if upload.is_complete}
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            while self._uploads and len(self._threads) < self._throttle.senders + 1:
                self._threads.append(start_thread("tranlogs-send", self._send))
            self._changed.notify_all()
        for upload in before.values():
            if not upload.is_complete:  # not scheduled any more
                upload.close()
                for name in upload.sent_objects():
                    self._store.delete(name)

    def _in_flight(self) -> list[str]:
        with self._changed:
            return [name for upload in self._uploads.values() for name in upload.sent_objects()]

    # The sending threads.

    def _send(self) -> None:
        while not self._is_stopped:
            try:
                if (found := self._next()) is not None:
                    self._send_part(*found)
            except Exception as error:
                self._note_failure("send", error)
            with self._changed:
                self._changed.notify_all()

    def _send_part(self, upload: Upload, claimed: tuple[int, FilePart] | None) -> None:
        """Send a part of an upload, or open the upload if there is no part."""
        try:
            if claimed is None:
                upload.open()
            else:
                with self._throttle.slot():
                    upload.send(claimed, self._store, self._prefix, self._ledger.writer, self._throttle)
                self._note_success("send")
        except (CorruptRecord, CorruptCheckpoint, FileNotFoundError) as error:
            self._exclude(upload, error)
        except Exception as error:
            if claimed is None:
                self._exclude(upload, error)
            if claimed is not None or not isinstance(error, _FAILURES):
                raise

    def _next(self) -> tuple[Upload, tuple[int, FilePart] | None] | None:
        """Wait for the next piece of work, and return an upload with the part to send; None to stop.

        An upload without a part must be opened.
        """
        with self._changed:
            while not self._is_stopped:
                if self._clock.monotonic() >= self._retries.resume_at and self._ledger.is_attached:
                    for upload in self._uploads.values():
                        claimed = upload.claim()
                        if claimed is not None or upload.claim_opening():
                            return upload, claimed
                self._changed.wait(_TURN_SECONDS)
            return None

    def _exclude(self, upload: Upload, error: BaseException) -> None:
        with self._changed:
            self._uploads.pop(upload.name, None)
            self._exclusions.add(upload.name, error, self._clock.monotonic())

    def _report_exclusions(self, contents: JournalContents) -> None:
        """Log the items that could not be opened. An item that is not listed any more was pruned, which is not a problem."""
        with self._changed:
            unreported = self._exclusions.take_unreported()
        listed = {row.file for row in contents.segments if row.state == "sealed"} | {row.name for row in contents.checkpoints}
        for name, why in unreported:
            if name in listed:
                _log.warning("%s: cannot ship %s now: %s", self._paths.folder, name, why)
            else:
                _log.info("%s: %s was pruned before it was shipped", self._paths.folder, name)

    # Failures.

    def _note_success(self, activity: Activity) -> None:
        with self._changed:
            if self._retries.note_success(activity, is_idle=not self._uploads):
                _log.info("%s: shipping to %s again", self._paths.folder, self._store.url)

    def _note_failure(self, activity: Activity, error: BaseException) -> None:
        """Record a failure and the time of the next attempt. Log it unless it was logged before."""
        with self._changed:
            is_new = self._retries.note_failure(activity, error, self._clock.monotonic())
            problem = self._retries.problem
        if is_new:
            trace = None if isinstance(error, _FAILURES) else error
            _log.warning("%s: cannot ship now, trying again later: %s", self._paths.folder, problem, exc_info=trace)

    def progress(self) -> ShippingProgress:
        """Return the progress of shipping, without taking a turn."""
        with self._changed:
            bytes_left = sum(_nbytes(upload.row) for upload in self._uploads.values())
            problem, is_refused = self._retries.problem, self._retries.is_refused
            return ShippingProgress(len(self._uploads), bytes_left, *self._ledger.marks, problem, is_refused)


def _nbytes(row: SegmentRow | CheckpointRow) -> int:
    return row.used_bytes if isinstance(row, SegmentRow) else row.nbytes
