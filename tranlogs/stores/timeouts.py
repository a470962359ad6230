"""A store that hangs must not hold up who uses it: each call runs in a thread of its own, and is given up when it stalls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar, cast

from ..base.errors import StoreUnavailable
from ..base.threads import start_thread
from .base import ObjectStatus, Store

T = TypeVar("T")

STALL_SECONDS = 60.0  # as usual
_STUCK_MAX = 8  # threads that a hanging store may hold
_LOOK_SECONDS = 0.5


class PatientStore(Store):
    """A store whose calls raise StoreUnavailable when nothing moved for a time.

    Args:
        store: the one that is asked.
        stall_seconds: without a byte read or written, and without an answer.
    """

    def __init__(self, store: Store, stall_seconds: float) -> None:
        self._store, self._stall_seconds = store, stall_seconds
        self._lock = threading.Lock()
        self._stuck = 0
        self.url, self.copies_wanted = store.url, store.copies_wanted

    def put(self, name: str, content: BinaryIO, nbytes: int) -> None:
        watched = _Watched(content)
        self._call(watched, lambda: self._store.put(name, cast(BinaryIO, watched), nbytes))

    def get(self, name: str, into: BinaryIO) -> int:
        watched = _Watched(into)
        return self._call(watched, lambda: self._store.get(name, cast(BinaryIO, watched)))

    def stat(self, name: str) -> ObjectStatus | None:
        return self._call(_Watched(None), lambda: self._store.stat(name))

    def names(self, prefix: str) -> list[str]:
        return self._call(_Watched(None), lambda: self._store.names(prefix))

    def delete(self, name: str) -> None:
        self._call(_Watched(None), lambda: self._store.delete(name))

    def demand_place(self) -> None:
        self._call(_Watched(None), self._store.demand_place)

    def hasten(self, name: str) -> None:
        self._call(_Watched(None), lambda: self._store.hasten(name))

    def advice(self, problem: str) -> str:
        return self._store.advice(problem)

    def close(self) -> None:
        self._store.close()

    def _call(self, watched: _Watched, work: Callable[[], T]) -> T:
        if self._stuck >= _STUCK_MAX:
            raise StoreUnavailable(self.url, f"{self._stuck} calls hang")
        outcome: list[tuple[T | None, BaseException | None]] = []
        done = threading.Event()

        def run() -> None:
            try:
                outcome.append((work(), None))
            except BaseException as error:
                outcome.append((None, error))
            done.set()
            with self._lock:
                self._stuck -= watched.is_given_up

        start_thread("tranlogs-store", run)
        while not done.wait(min(_LOOK_SECONDS, self._stall_seconds)):
            if time.monotonic() - watched.moved_at > self._stall_seconds:
                with self._lock:
                    if not done.is_set():
                        watched.is_given_up = True
                        self._stuck += 1
                        raise StoreUnavailable(self.url, f"nothing moved for {self._stall_seconds:g} s")
        result, error = outcome[0]
        if error is not None:
            raise error
        return cast(T, result)


class _Watched:
    """A file that says when it was last read or written, and that serves a call no more once that was given up."""

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file
        self.moved_at = time.monotonic()
        self.is_given_up = False

    def read(self, size: int = -1) -> bytes:
        self._demand()
        assert self._file is not None
        data = self._file.read(size)
        self._demand()
        return data

    def write(self, data: bytes) -> int:
        self._demand()
        assert self._file is not None
        return self._file.write(data)

    def _demand(self) -> None:
        if self.is_given_up:
            raise OSError("this transfer was given up")
        self.moved_at = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
