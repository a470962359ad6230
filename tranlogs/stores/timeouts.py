"""Timeouts for stores: each call runs in a new thread and is abandoned when it stalls, so that no caller hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar, cast

from ..base.errors import StoreUnavailable
from ..base.threads import start_thread
from .store import ObjectStatus, Store

T = TypeVar("T")

STALL_SECONDS = 60.0  # the default
_STUCK_MAX = 8  # threads that a hanging store may occupy
_POLL_SECONDS = 0.5


class TimeoutStore(Store):
    """A store that raises StoreUnavailable if a call makes no progress for some time.

    Args:
        store: the store that is called.
        stall_seconds: time without a byte read or written, and without an answer.
    """

    def __init__(self, store: Store, stall_seconds: float) -> None:
        self._store, self._stall_seconds = store, stall_seconds
        self._lock = threading.Lock()
        self._stuck = 0
        self.url, self.copies_wanted = store.url, store.copies_wanted

    def put(self, name: str, content: BinaryIO, nbytes: int) -> None:
        file = _MonitoredFile(content)
        self._call(lambda: self._store.put(name, cast(BinaryIO, file), nbytes), file)

    def get(self, name: str, into: BinaryIO) -> int:
        file = _MonitoredFile(into)
        return self._call(lambda: self._store.get(name, cast(BinaryIO, file)), file)

    def stat(self, name: str) -> ObjectStatus | None:
        return self._call(lambda: self._store.stat(name))

    def names(self, prefix: str) -> list[str]:
        return self._call(lambda: self._store.names(prefix))

    def delete(self, name: str) -> None:
        self._call(lambda: self._store.delete(name))

    def check_root(self) -> None:
        self._call(self._store.check_root)

    def request_durability(self, name: str) -> None:
        self._call(lambda: self._store.request_durability(name))

    def close(self) -> None:
        self._store.close()

    def _call(self, work: Callable[[], T], file: _MonitoredFile | None = None) -> T:
        file = file or _MonitoredFile(None)
        if self._stuck >= _STUCK_MAX:
            raise StoreUnavailable(self.url, f"{self._stuck} earlier calls still hang")
        outcome: list[tuple[T | None, BaseException | None]] = []
        done = threading.Event()

        def run() -> None:
            try:
                outcome.append((work(), None))
            except BaseException as error:
                outcome.append((None, error))
            done.set()
            with self._lock:
                self._stuck -= file.is_abandoned

        start_thread("tranlogs-store", run)
        while not done.wait(min(_POLL_SECONDS, self._stall_seconds)):
            if time.monotonic() - file.moved_at > self._stall_seconds:
                with self._lock:
                    if not done.is_set():
                        file.is_abandoned = True
                        self._stuck += 1
                        raise StoreUnavailable(self.url, f"nothing moved for {self._stall_seconds:g} s")
        result, error = outcome[0]
        if error is not None:
            raise error
        return cast(T, result)


class _MonitoredFile:
    """A file that records when it was last read or written, and that fails once its call was abandoned."""

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file
        self.moved_at = time.monotonic()
        self.is_abandoned = False

    def read(self, size: int = -1) -> bytes:
        self._check()
        assert self._file is not None
        data = self._file.read(size)
        self._check()
        return data

    def write(self, data: bytes) -> int:
        self._check()
        assert self._file is not None
        return self._file.write(data)

    def _check(self) -> None:
        if self.is_abandoned:
            raise OSError("this transfer was abandoned after a timeout")
        self.moved_at = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
