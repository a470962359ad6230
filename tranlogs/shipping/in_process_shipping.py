"""Shipping in the trainer's process (`LoggedOptimizer(store=...)`), without a daemon.

Sealed segments and checkpoints are shipped in the background.
"""

from __future__ import annotations

import logging
import math
import os
import time
from typing import Protocol

from ..base.clock import SystemClock
from ..base.errors import TranLogsError, error_text
from ..catalog import Catalog
from ..journal import JournalPaths
from ..stores import STALL_SECONDS, TimeoutStore, open_store
from .manifest import journal_prefix
from .sending.archiver import Archiver, ShippingSettings

_log = logging.getLogger("tranlogs")

LAG_SECONDS = 10.0  # Segments of this age are sealed, so that the store trails the log by little more.
_DURABLE_SECONDS = 20.0  # `close` waits for this time for the watermark `persisted` to move.


class EmbeddedShipper(Protocol):
    """Background shipping of the journal that this process writes."""

    def wait(self, committed: int, seconds: float) -> None:
        """Wait until the store holds a step, shipping has stalled, or the time is up. Any thread may call it."""
        ...

    def close(self, committed: int, seconds: float | None = None) -> None:
        """Stop shipping, after the journal was closed at the step `committed`.

        First wait until the step is durable in the store, shipping has stalled, or the time is up.
        """
        ...


def start_shipping(url: str | None, paths: JournalPaths) -> EmbeddedShipper:
    """Start to ship a journal that this process writes. Failures are logged as warnings and retried.

    Raises:
        StoreRefused: the store's address is wrong.
        LogUnavailable: no thread can be started.
    """
    return _NoShipper() if url is None else _StoreShipper(url, paths)


class _NoShipper:
    """An `EmbeddedShipper` for a run without a store."""

    def wait(self, committed: int, seconds: float) -> None:
        """Nothing to do."""

    def close(self, committed: int, seconds: float | None = None) -> None:
        """Nothing to do."""


class _StoreShipper:
    """An `EmbeddedShipper` that runs an `Archiver`."""

    def __init__(self, url: str, paths: JournalPaths) -> None:
        self._paths, self._pid = paths, os.getpid()
        self._store = TimeoutStore(open_store(url), STALL_SECONDS)
        self._archiver = Archiver(paths, self._store, journal_prefix(paths), ShippingSettings(LAG_SECONDS), SystemClock())
        self._archiver.start()

    def wait(self, committed: int, seconds: float) -> None:
        if os.getpid() == self._pid:
            self._wait_for(committed, time.monotonic() + seconds)

    def close(self, committed: int, seconds: float | None = None) -> None:
        if os.getpid() != self._pid:  # a forked child does not ship
            return
        try:
            end = time.monotonic() + (math.inf if seconds is None else seconds)
            if self._wait_for(committed, end):
                self._wait_durable(committed, end)
            self._archiver.close()
            self._store.close()
        except (TranLogsError, OSError) as error:
            _log.warning("%s: could not stop shipping cleanly: %s", self._paths.folder, error_text(error))

    def _wait_for(self, committed: int, end: float) -> bool:
        last, since = None, time.monotonic()
        while (now := self._archiver.progress()).archived < committed:
            if now != last:
                last, since = now, time.monotonic()
            stalled = time.monotonic() - since
            if stalled > STALL_SECONDS or (now.problem and stalled > STALL_SECONDS / 10) or time.monotonic() > end:
                _log.warning(
                    "%s: steps after %d may be missing from the store %s%s; run `tranlogs push` to ship them",
                    self._paths.folder,
                    max(now.archived, self._archived_step()),
                    self._store.url,
                    f" ({now.problem})" if now.problem else "",
                )
                return False
            self._archiver.wake()
            self._archiver.wait()
        return True

    def _wait_durable(self, committed: int, end: float) -> None:
        last, since = None, time.monotonic()
        while (now := self._archiver.progress()).persisted < committed:
            if now.persisted != last:
                last, since = now.persisted, time.monotonic()
            if time.monotonic() - since > _DURABLE_SECONDS or time.monotonic() > end:
                _log.warning(
                    "%s: steps after %d are in the store %s but not durable yet; run `tranlogs push` to wait for that",
                    self._paths.folder,
                    now.persisted,
                    self._store.url,
                )
                return
            self._archiver.wake()
            self._archiver.wait()

    def _archived_step(self) -> int:
        """Return the watermark `archived` of the catalog, which counts what earlier processes have shipped, too."""
        try:
            catalog = Catalog.open(self._paths.folder)
        except TranLogsError:
            return 0
        try:
            return catalog.watermarks().archived
        finally:
            catalog.close()
