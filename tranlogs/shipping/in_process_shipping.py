"""Shipping in the trainer's process (`LoggedOptimizer(store=...)`), without a daemon.

Sealed segments and checkpoints are shipped in the background.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable

from ..base.clock import Clock
from ..base.errors import TranLogsError, error_text
from ..catalog import Catalog
from ..journal import JournalPaths
from ..stores import STALL_SECONDS, TimeoutStore, open_store
from .archiver import Archiver, ShippingProgress, ShippingSettings
from .manifest import journal_prefix

_log = logging.getLogger("tranlogs")

LAG_SECONDS = 10.0  # Segments of this age are sealed, so that the store trails the log by little more.
_DURABLE_SECONDS = 20.0  # `close` waits for this time for the watermark `persisted` to move.


class InProcessShipper:
    """Ships the journal that this process writes; does nothing if there is no store, and in forked children.

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
            _log.warning("%s: could not stop shipping cleanly: %s", self._paths.folder, error_text(error))

    def _wait_archived(self, archiver: Archiver, committed: int, end: float) -> bool:
        def is_stalled(now: ShippingProgress, seconds: float) -> bool:
            return seconds > STALL_SECONDS or (bool(now.problem) and seconds > STALL_SECONDS / 10)

        last = _follow(archiver, lambda now: now.archived >= committed, lambda now: now, is_stalled, end)
        if last is None:
            return True
        _log.warning(
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
            _log.warning(
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
