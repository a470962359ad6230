"""Ships a journal to a store, beside whatever else happens: a thread that decides, and a few that send.

At each turn it looks at the catalog, orders what is to be sent, publishes a manifest when something has arrived, asks whether
what arrived is durable, and gives up what the store does not keep. The store counts first, the catalog follows: what it says
of the store (watermarks `archived` and `persisted`, rows `shipped/`) is never ahead of the newest manifest.

A store that fails is tried again, with longer and longer pauses; whoever trains or prunes never waits for it.
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
from ..inventory.group_retention import Siblings
from ..inventory.ledger import Ledger
from ..inventory.manifest import Shipped
from .plan import Look, plan_giving_up, plan_sending
from .source import Piece
from .throttle import Throttle
from .upload import Upload

_log = logging.getLogger(__name__)

_FAILURES = (TranLogsError, OSError, MemoryError)  # none of them ends shipping
_LEFT_OUT_SECONDS = 600.0  # until what could not be opened is tried again
_TURN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How a journal is shipped.

    Attributes:
        lag_seconds_max: a segment is sealed, to be sent, when it is this old; None leaves that to the trainer.
        persist_seconds: after so long the store is asked again to make an object durable.
        keep: which checkpoints stay in the store, and the log behind the oldest of them.
        takes_over: whether another writer's manifest is gone on from.
    """

    lag_seconds_max: float | None = None
    persist_seconds: float = 120.0
    keep: RetentionPolicy = field(default_factory=KeepLatest)
    takes_over: bool = False


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far shipping is: items and bytes still to be sent, the marks, what is in the way ("" for nothing), and whether trying
    again would not help."""

    items_left: int
    bytes_left: int
    archived: int
    persisted: int
    problem: str = ""
    is_refused: bool = False


class Archiver:
    """See the module. `start` begins, `close` ends; `turn` is one turn, for whoever wants no thread that decides.

    It takes the journal's lock for shipping: a second one, here or in another process, waits until the first has ended.

    Args:
        paths: of the journal.
        store: where to; its calls end in bounded time (store/patience.py).
        place: the journal's folder there, "RUN/rank0".
        limits: settings.
        clock: of the catalog.
        throttle: shared by all that send, of this journal and of others.
    """

    def __init__(
        self, paths: JournalPaths, store: Store, place: str, limits: Limits, clock: Clock, throttle: Throttle | None = None
    ) -> None:
        self._paths, self._store, self._place, self._limits, self._clock = paths, store, place, limits, clock
        self._throttle = throttle or Throttle()
        self._ledger = Ledger(paths, store, place, clock, takes_over=limits.takes_over)
        self._siblings = Siblings(store, place, clock)
        self._changed = WaitableLock()
        self._uploads: dict[str, Upload] = {}  # under way, the most urgent first
        self._left_out: dict[str, float] = {}  # until when
        self._unsaid: list[tuple[str, str]] = []  # what was left out, and why
        self._threads: list[threading.Thread] = []
        self._failing = ""  # what failed last: "turn" or "send"
        self._failures, self._resume_at, self._problem, self._is_refused = 0, 0.0, "", False
        self._stopped, self._is_woken = False, False

    # The thread that decides.

    def start(self) -> None:
        """Ship in the background until `close`."""
        self._threads.append(start_thread("tranlogs-archive", self._run))

    def close(self) -> None:
        """Stop. What is being sent is given up; it is sent anew when somebody ships the journal next."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=5.0)
        for upload in self._uploads.values():
            upload.close()
        self._ledger.close()

    def wait(self, seconds: float = 0.2) -> None:
        """For whoever takes the turns: until something has moved, or for so long."""
        with self._changed:
            self._changed.wait(seconds)

    def wake(self) -> None:
        """Look at once whether there is something to send."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._stopped:
            self.turn()
            with self._changed:
                self._changed.wait_for(self._has_work, _TURN_SECONDS)
                self._is_woken = False

    def _has_work(self) -> bool:
        return self._stopped or self._is_woken or any(upload.is_complete for upload in self._uploads.values())

    def turn(self) -> Progressed:
        """Look, order, publish, and write down how far it is. Errors of the store are said and remembered, not raised."""
        if self._clock.monotonic() >= self._resume_at:
            try:
                self._turn()
                self._succeeded("turn")
            except _FAILURES as error:
                self._failed("turn", error)
        self._ledger.write_problem(self._problem)
        return self.progressed()

    def _turn(self) -> None:
        ledger = self._ledger
        look = ledger.look()
        self._say_left_out(look)
        ledger.attach()
        if self._limits.lag_seconds_max is not None:
            ledger.ask_for_seals(self._limits.lag_seconds_max)
        arrived = self._take_arrived()
        common = self._siblings.common(look)
        gone = plan_giving_up(ledger.shipped, self._limits.keep, look.timelines, common)
        if arrived or gone or ledger.is_stale(look):
            ledger.publish(look, arrived, gone)
        ledger.look_after(look, self._limits.persist_seconds, self._under_way())
        self._order(plan_sending(look, ledger.shipped, self._limits.keep, self._out_now(), common) + ledger.thin(look))
        ledger.write_marks(look)

    def _out_now(self) -> list[str]:
        now = self._clock.monotonic()
        self._left_out = {name: until for name, until in self._left_out.items() if until > now}
        return list(self._left_out)

    def _take_arrived(self) -> list[Shipped]:
        with self._changed:
            done = [upload for upload in self._uploads.values() if upload.is_complete]
            for upload in done:
                del self._uploads[upload.name]
        now = self._clock.now()
        arrived = [upload.shipped(now) for upload in done]
        for upload in done:
            upload.close()
        return arrived

    def _order(self, rows: list[SegmentRow | CheckpointRow]) -> None:
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
            if not upload.is_complete:  # and not wanted any more
                upload.close()
                for name in upload.sent():
                    self._store.delete(name)

    def _under_way(self) -> list[str]:
        with self._changed:
            return [name for upload in self._uploads.values() for name in upload.sent()]

    # The threads that send.

    def _send(self) -> None:
        while (found := self._next()) is not None:
            upload, claimed = found
            try:
                if claimed is None:
                    upload.open()
                else:
                    with self._throttle.slot():
                        upload.send(claimed, self._store, self._place, self._ledger.writer, self._throttle)
                    self._succeeded("send")
            except (CorruptRecord, CorruptCheckpoint, FileNotFoundError) as error:
                self._leave_out(upload, error)
            except _FAILURES as error:
                if claimed is None:
                    self._leave_out(upload, error)
                else:
                    self._failed("send", error)
            with self._changed:
                self._changed.notify_all()

    def _next(self) -> tuple[Upload, tuple[int, Piece] | None] | None:
        """What to send next, or to open first (no piece); waits for it. None when it is over."""
        with self._changed:
            while not self._stopped:
                if self._clock.monotonic() >= self._resume_at and self._ledger.is_attached:
                    for upload in self._uploads.values():
                        claimed = upload.claim()
                        if claimed is not None or upload.claim_opening():
                            return upload, claimed
                self._changed.wait(_TURN_SECONDS)
            return None

    def _leave_out(self, upload: Upload, error: BaseException) -> None:
        with self._changed:
            self._uploads.pop(upload.name, None)
            self._left_out[upload.name] = self._clock.monotonic() + _LEFT_OUT_SECONDS
            self._unsaid.append((upload.name, error_text(error)))

    def _say_left_out(self, look: Look) -> None:
        """What is not listed any more was pruned before it could be sent, which is nothing to worry about."""
        with self._changed:
            unsaid, self._unsaid = self._unsaid, []
        listed = {row.file for row in look.segments if row.state == "sealed"} | {row.name for row in look.checkpoints}
        for name, why in unsaid:
            if name in listed:
                _log.warning("%s: %s is not shipped: %s", self._paths.folder, name, why)
            else:
                _log.info("%s: %s is not shipped: it was pruned before", self._paths.folder, name)

    # What goes wrong.

    def _succeeded(self, what: str) -> None:
        with self._changed:
            if self._failing == what or (self._failing and not self._uploads):
                self._failing, self._failures, self._problem, self._is_refused = "", 0, "", False
                _log.info("%s: is shipped to %s again", self._paths.folder, self._store.url)

    def _failed(self, what: str, error: BaseException) -> None:
        """Remember a failure and when to try again; each is said once."""
        with self._changed:
            is_refused = isinstance(error, StoreRefused)
            is_new = self._failing != what or self._failures == 0 or (is_refused and self._problem != error_text(error))
            self._failing, self._problem, self._is_refused = what, error_text(error), is_refused
            self._failures += 1
            pause = min(RETRY_SECONDS_MIN * 2 ** min(self._failures - 1, 10), RETRY_SECONDS_MAX) * random.uniform(0.5, 1.0)
            pause = RETRY_SECONDS_MAX if is_refused else pause
            self._resume_at = self._clock.monotonic() + pause
        if is_new:
            _log.warning("%s: cannot be shipped now, and is tried again: %s", self._paths.folder, self._problem)

    def progressed(self) -> Progressed:
        """How far it is, without a turn."""
        with self._changed:
            bytes_left = sum(_nbytes(upload.row) for upload in self._uploads.values())
            return Progressed(len(self._uploads), bytes_left, *self._ledger.marks, self._problem, self._is_refused)


def _nbytes(row: SegmentRow | CheckpointRow) -> int:
    return row.used_bytes if isinstance(row, SegmentRow) else row.nbytes
