"""Shipping of a journal to a store in the background: one thread decides, and a few threads send.

In each turn the deciding thread reads the catalog, schedules uploads, publishes a manifest when an upload has arrived, asks
the store what is durable, and drops what the store need not keep. The store comes first and the catalog follows: what it says
of the store (watermarks `archived` and `persisted`, rows `shipped/`) is never ahead of the newest manifest.

A store that fails is tried again after longer and longer pauses. Training and pruning never wait for it.
"""

from __future__ import annotations

import logging
import random
import threading
from dataclasses import dataclass, field

from ...base.clock import Clock
from ...base.config import RETRY_SECONDS_MAX, RETRY_SECONDS_MIN
from ...base.errors import CorruptCheckpoint, CorruptRecord, StoreRefused, TranLogsError, error_text
from ...base.threads import WaitableLock, start_thread
from ...catalog import CheckpointRow, SegmentRow
from ...journal.opening import JournalPaths
from ...retention.keep_policy import KeepLatest, RetentionPolicy
from ...stores import Store
from ..inventory.group_retention import GroupRetention
from ..inventory.ledger import Ledger
from ..items.plan import JournalContents, plan_expiry, plan_uploads
from ..items.source import FilePart
from ..items.throttle import Throttle
from ..manifest import ShippedItem
from .upload import Upload

_log = logging.getLogger(__name__)

_FAILURES = (TranLogsError, OSError, MemoryError)  # none of these ends shipping
_EXCLUDED_SECONDS = 600.0  # after which an item that could not be opened is tried again
_TURN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ShippingSettings:
    """How a journal is shipped.

    Attributes:
        lag_seconds_max: age at which an open segment is sealed, so that it can be sent; None leaves sealing to the trainer.
        persist_seconds: time after which the store is asked again to make an object durable.
        keep: which checkpoints stay in the store; the log after the oldest of them stays, too.
        takes_over: True to continue after another writer's manifest.
    """

    lag_seconds_max: float | None = None
    persist_seconds: float = 120.0
    keep: RetentionPolicy = field(default_factory=KeepLatest)
    takes_over: bool = False


@dataclass(frozen=True, slots=True)
class ShippingProgress:
    """How far shipping is.

    Attributes:
        items_left: number of items that are still to be sent.
        bytes_left: their size.
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

    It holds the journal's lock for shipping: a second archiver, in this process or another, waits until the first has ended.

    Args:
        paths: the journal's.
        store: where to ship; its calls must end in bounded time (`TimeoutStore`).
        prefix: the journal's place there, "RUN/rank0".
        settings: how to ship.
        clock: the catalog's.
        throttle: shared by all that send, of this journal and of others.
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
        self._excluded: dict[str, float] = {}  # by name: until when
        self._unreported: list[tuple[str, str]] = []  # name and reason of excluded items
        self._threads: list[threading.Thread] = []
        self._failing = ""  # what failed last: "turn" or "send"
        self._failures, self._resume_at, self._problem, self._is_refused = 0, 0.0, "", False
        self._stopped, self._is_woken = False, False

    # The deciding thread.

    def start(self) -> None:
        """Ship in the background until `close`."""
        self._threads.append(start_thread("tranlogs-archive", self._run))

    def close(self) -> None:
        """Stop. An upload that is in flight is abandoned, and sent anew when the journal is shipped next."""
        with self._changed:
            self._stopped = True
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
        while not self._stopped:
            self.run_once()
            with self._changed:
                self._changed.wait_for(self._has_work, _TURN_SECONDS)
                self._is_woken = False

    def _has_work(self) -> bool:
        return self._stopped or self._is_woken or any(upload.is_complete for upload in self._uploads.values())

    def run_once(self) -> ShippingProgress:
        """Take one turn, and return how far shipping is. Errors of the store are logged and remembered, not raised."""
        if self._clock.monotonic() >= self._resume_at:
            try:
                self._run_turn()
                self._note_success("turn")
            except _FAILURES as error:
                self._note_failure("turn", error)
        self._ledger.write_problem(self._problem)
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
        now = self._clock.monotonic()
        self._excluded = {name: until for name, until in self._excluded.items() if until > now}
        return list(self._excluded)

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
        while (found := self._next()) is not None:
            upload, claimed = found
            try:
                if claimed is None:
                    upload.open()
                else:
                    with self._throttle.slot():
                        upload.send(claimed, self._store, self._prefix, self._ledger.writer, self._throttle)
                    self._note_success("send")
            except (CorruptRecord, CorruptCheckpoint, FileNotFoundError) as error:
                self._exclude(upload, error)
            except _FAILURES as error:
                if claimed is None:
                    self._exclude(upload, error)
                else:
                    self._note_failure("send", error)
            with self._changed:
                self._changed.notify_all()

    def _next(self) -> tuple[Upload, tuple[int, FilePart] | None] | None:
        """Wait for something to do; return an upload and the part to send, or None to stop.

        If there is no part, the upload is to be opened.
        """
        with self._changed:
            while not self._stopped:
                if self._clock.monotonic() >= self._resume_at and self._ledger.is_attached:
                    for upload in self._uploads.values():
                        claimed = upload.claim()
                        if claimed is not None or upload.claim_opening():
                            return upload, claimed
                self._changed.wait(_TURN_SECONDS)
            return None

    def _exclude(self, upload: Upload, error: BaseException) -> None:
        with self._changed:
            self._uploads.pop(upload.name, None)
            self._excluded[upload.name] = self._clock.monotonic() + _EXCLUDED_SECONDS
            self._unreported.append((upload.name, error_text(error)))

    def _report_exclusions(self, contents: JournalContents) -> None:
        """Log the items that could not be opened; one that is not listed any more was pruned before, which is no problem."""
        with self._changed:
            unreported, self._unreported = self._unreported, []
        listed = {row.file for row in contents.segments if row.state == "sealed"} | {row.name for row in contents.checkpoints}
        for name, why in unreported:
            if name in listed:
                _log.warning("%s: cannot ship %s now: %s", self._paths.folder, name, why)
            else:
                _log.info("%s: %s was pruned before it was shipped", self._paths.folder, name)

    # Failures.

    def _note_success(self, what: str) -> None:
        with self._changed:
            if self._failing == what or (self._failing and not self._uploads):
                self._failing, self._failures, self._problem, self._is_refused = "", 0, "", False
                _log.info("%s: shipping to %s again", self._paths.folder, self._store.url)

    def _note_failure(self, what: str, error: BaseException) -> None:
        """Remember a failure, and when to try again; log it once."""
        with self._changed:
            is_refused = isinstance(error, StoreRefused)
            is_new = self._failing != what or self._failures == 0 or (is_refused and self._problem != error_text(error))
            self._failing, self._problem, self._is_refused = what, error_text(error), is_refused
            self._failures += 1
            pause = min(RETRY_SECONDS_MIN * 2 ** min(self._failures - 1, 10), RETRY_SECONDS_MAX) * random.uniform(0.5, 1.0)
            pause = RETRY_SECONDS_MAX if is_refused else pause
            self._resume_at = self._clock.monotonic() + pause
        if is_new:
            _log.warning("%s: cannot ship now, trying again later: %s", self._paths.folder, self._problem)

    def progress(self) -> ShippingProgress:
        """Return how far shipping is, without taking a turn."""
        with self._changed:
            bytes_left = sum(_nbytes(upload.row) for upload in self._uploads.values())
            return ShippingProgress(len(self._uploads), bytes_left, *self._ledger.marks, self._problem, self._is_refused)


def _nbytes(row: SegmentRow | CheckpointRow) -> int:
    return row.used_bytes if isinstance(row, SegmentRow) else row.nbytes
