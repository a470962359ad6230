"""A store that comes with the trainer (`LoggedOptimizer(store=...)`): a run that is not here is brought from it, and what is
sealed is shipped in the trainer's own background, for those without a daemon.
"""

from __future__ import annotations

import logging
import math
import os
import time
from typing import Protocol

from ..base.clock import SystemClock
from ..base.errors import CorruptObject, NotARun, StoreUnavailable, TranLogsError, error_text
from ..catalog import Catalog, Watermarks
from ..journal import JournalPaths
from ..stores import STALL_SECONDS, PatientStore, open_store
from .fetching.pull import Progress, Pulled, pull
from .inventory.manifest import place_of, read_newest
from .sending.archiver import Archiver, Limits

_log = logging.getLogger("tranlogs")

LAG_SECONDS = 10.0  # the store is not further behind
_DURABLE_SECONDS = 20.0  # at the end: for what the store has to become durable there, without getting on


class Along(Protocol):
    """Shipping that goes along with a trainer."""

    def wait(self, committed: int, seconds: float) -> None:
        """Wait until the store has a step, does not get on, or so much time is over. From any thread."""
        ...

    def close(self, committed: int, seconds: float | None = None) -> None:
        """The journal was closed at a step: wait until the store has it durably, does not get on, or so much time is over."""
        ...


def bring_absent(url: str | None, paths: JournalPaths, progress: Progress | None = None) -> Pulled | None:
    """Bring a journal that is not here from the store; None if it is here, or nowhere.

    Raises:
        StoreUnavailable: the store does not answer. A run that may be there must not begin anew.
        StoreRefused: its address is wrong.
        CorruptObject: it is there, and none of its checkpoints can be read.
    """
    if url is None or paths.folder.exists():
        return None
    with PatientStore(open_store(url), STALL_SECONDS) as store:
        place = place_of(paths)
        try:
            store.demand_place()
            newest, damaged = read_newest(store, place)
        except StoreUnavailable as error:
            todo = store.advice(str(error))
            why = f"{error.why}. {paths.folder} is not here, and the store cannot be asked for it: nothing was begun"
            raise StoreUnavailable(error.url, why + (f". To do: {todo}" if todo else "")) from None
        if newest is None and damaged:  # a run is there: it must not begin anew
            raise CorruptObject(f"{url}/{place}", f"none of its manifests can be read: {'; '.join(damaged)}")
        if newest is None:
            return None
        try:
            found = pull(store, place, paths.folder, progress=progress)
        except NotARun:  # the first checkpoint had not come there yet
            return None
    _log.warning("%s: was not here, and was brought from %s/%s, up to step %d", paths.folder, url, place, found.step)
    for note in found.notes:
        _log.warning("%s: %s", paths.folder, note)
    return found


def ship_along(url: str | None, paths: JournalPaths) -> Along:
    """Ship a journal that this process writes. Failures are warnings, and tried again.

    Raises:
        StoreRefused: the address is wrong.
        LogUnavailable: no thread is to be had.
    """
    return _Nowhere() if url is None else _Shipping(url, paths)


class _Nowhere:
    def wait(self, committed: int, seconds: float) -> None:
        """Nothing to do."""

    def close(self, committed: int, seconds: float | None = None) -> None:
        """Nothing to do."""


class _Shipping:
    def __init__(self, url: str, paths: JournalPaths) -> None:
        self._paths, self._pid = paths, os.getpid()
        self._store = PatientStore(open_store(url), STALL_SECONDS)
        self._archiver = Archiver(paths, self._store, place_of(paths), Limits(LAG_SECONDS), SystemClock())
        self._archiver.start()

    def wait(self, committed: int, seconds: float) -> None:
        if os.getpid() == self._pid:
            self._wait_for(committed, time.monotonic() + seconds)

    def close(self, committed: int, seconds: float | None = None) -> None:
        if os.getpid() != self._pid:  # a forked child has no part in it
            return
        try:
            end = time.monotonic() + (math.inf if seconds is None else seconds)
            if self._wait_for(committed, end):
                self._wait_durable(committed, end)
            self._archiver.close()
            self._store.close()
        except (TranLogsError, OSError) as error:
            _log.warning("%s: shipping did not end in order: %s", self._paths.folder, error_text(error))

    def _wait_for(self, committed: int, end: float) -> bool:
        last, since = None, time.monotonic()
        while (now := self._archiver.progressed()).archived < committed:
            if now != last:
                last, since = now, time.monotonic()
            stalled = time.monotonic() - since
            if stalled > STALL_SECONDS or (now.problem and stalled > STALL_SECONDS / 10) or time.monotonic() > end:
                _log.warning(
                    "%s: steps after %d are not in the store %s, as far as is known%s; `tranlogs push` ships them",
                    self._paths.folder,
                    max(now.archived, self._told().archived),
                    self._store.url,
                    f" ({now.problem})" if now.problem else "",
                )
                return False
            self._archiver.wake()
            self._archiver.wait()
        return True

    def _wait_durable(self, committed: int, end: float) -> None:
        last, since = None, time.monotonic()
        while (now := self._archiver.progressed()).persisted < committed:
            if now.persisted != last:
                last, since = now.persisted, time.monotonic()
            if time.monotonic() - since > _DURABLE_SECONDS or time.monotonic() > end:
                _log.warning(
                    "%s: steps after %d are in the store %s, but not durable there yet; `tranlogs push` waits",
                    self._paths.folder,
                    now.persisted,
                    self._store.url,
                )
                return
            self._archiver.wake()
            self._archiver.wait()

    def _told(self) -> Watermarks:
        """The marks of earlier processes, too."""
        try:
            catalog = Catalog.open(self._paths.folder)
        except TranLogsError:
            return Watermarks()
        try:
            return catalog.watermarks()
        finally:
            catalog.close()
