"""The interface of a store: named objects that are written whole and never changed.

* A name is used for one attempt only. Another attempt uses another name, so that a late write of the first attempt cannot
  damage the object. The manifest names the valid objects (shipping/manifest.py).
* An object counts as archived when `stat` reports it as complete and of the right length, and as persisted when `stat` reports
  it as durable. The return of `put` is not proof of either.
* A store does not guarantee the content of objects: the reader compares it with checksums in the manifest.
* A client of a store may hang. `TimeoutStore` therefore makes each call in a new thread, and abandons the call when it stalls.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import EIO
from types import TracebackType
from typing import Any, BinaryIO, TypeVar, cast

from ..base.errors import StoreUnavailable
from ..base.threads import start_thread

T = TypeVar("T")

BLOCK_BYTES = 1 << 20  # of reads and writes
STALL_SECONDS = 60.0  # the default
_STUCK_MAX = 8  # threads that a hanging store may occupy
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """Status of an object, as the store reports it.

    Attributes:
        nbytes: the length of the object.
        is_complete: True if writing the object was finished.
        is_durable: True if the object survives the death of the store's processes and machines.
        copies: number of machines that hold the object in memory; None if the store has no such machines.
        is_lost: True if the store has lost the object.
        is_forgotten: True if the store will not make the object durable, because it has no request to do so.
    """

    nbytes: int
    is_complete: bool = True
    is_durable: bool = True
    copies: int | None = None
    is_lost: bool = False
    is_forgotten: bool = False


class Store(ABC):
    """A store. Names are relative, with "/" between their parts. Any thread may call; every call ends in bounded time.

    All methods raise StoreUnavailable if the store does not answer (try again), StoreRefused if trying again would not help.

    Attributes:
        url: address of the store, without passwords.
        copies_wanted: number of machines that should hold an object in memory before it counts as archived; 1 for a store
            without such machines.
    """

    url: str
    copies_wanted: int = 1

    @abstractmethod
    def put(self, name: str, content: BinaryIO, nbytes: int) -> None:
        """Write an object of `nbytes` bytes, read from the current position of `content`.

        After a failure, the store may hold nothing, an object that `stat` does not report as complete, or an object of another
        length. `content` may be read more than once (tell, seek).

        Raises:
            OSError: `content` ends early, or cannot be read.
        """

    @abstractmethod
    def get(self, name: str, into: BinaryIO) -> int:
        """Write an object's bytes to a file; return their number.

        Raises:
            CorruptObject: there is no such object, or it ends early.
        """

    @abstractmethod
    def stat(self, name: str) -> ObjectStatus | None:
        """Return the store's facts about an object; None if there is no object of that name."""

    @abstractmethod
    def names(self, prefix: str) -> list[str]:
        """Return the names of all objects below a prefix (a folder), sorted."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object; do nothing if there is none."""

    def check_root(self) -> None:  # noqa: B027 - most stores exist, or do not answer
        """Check that the place of the store exists: a disk that is not mounted looks like an empty store.

        Raises:
            StoreUnavailable: it does not exist.
        """

    def request_durability(self, name: str) -> None:  # noqa: B027 - most stores drop no request
        """Request once more that an object become durable, for stores that can drop such a request.

        Whatever dies meanwhile, the object is still found by its name.
        """

    def close(self) -> None:  # noqa: B027 - most stores have none
        """Close the connections."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def split_name(name: str) -> list[str]:
    """Return the parts of an object's name."""
    parts = name.strip("/").split("/")
    assert all(part not in ("", ".", "..") for part in parts), f"{name!r} is not the name of an object"
    return parts


class FileSlice:
    """The next `nbytes` bytes of a file, in the form that clients send. The length is known ahead, so that it is one body.

    Attributes:
        nbytes: the length.
        error: the error of reading the file, if there was one: a client may report it as a network error.
    """

    def __init__(self, name: str, file: BinaryIO, nbytes: int) -> None:
        self.nbytes = nbytes
        self.error: OSError | None = None
        self._name = name
        self._file = file
        self._left = nbytes

    def __len__(self) -> int:
        return self.nbytes

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(BLOCK_BYTES), b"")

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; none at the end.

        Raises:
            OSError: the file ends early, or cannot be read.
        """
        wanted = self._left if size < 0 else min(size, self._left)
        try:
            block = self._file.read(wanted)
        except OSError as error:
            self.error = error
            raise
        if wanted and not block:
            self.error = OSError(EIO, f"the file ends {self._left} of {self.nbytes} bytes early", self._name)
            raise self.error
        self._left -= len(block)
        return block


class TimeoutStore(Store):
    """A store that raises StoreUnavailable if no byte is read or written, and no answer comes, for `stall_seconds`."""

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
