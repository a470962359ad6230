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
from typing import BinaryIO, TypeVar, cast

import xxhash

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
    def put(self, name: str, content: Content) -> None:
        """Write an object.

        After a failure, the store may hold nothing, an object that `stat` does not report as complete, or an object of another
        length. The content may be read more than once.

        Raises:
            OSError: the content ends early, or cannot be read.
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


class Transfer:
    """The bytes that a call of a store moves, last at the time `moved_at` of the monotonic clock.

    If the call was given up, the transfer `is_abandoned`: moving more bytes fails.
    """

    def __init__(self) -> None:
        self.moved_at = time.monotonic()
        self.is_abandoned = False

    def note_progress(self) -> None:
        """Note that the call goes on, or raise OSError if it was abandoned."""
        if self.is_abandoned:
            raise OSError("this transfer was abandoned after a timeout")
        self.moved_at = time.monotonic()


class Content(Transfer):
    """The bytes of an object to be sent. The length is known ahead, so that clients send them as one body.

    `read_at` returns at most as many bytes at an offset as are asked for, and none if the source ends there. `name` is the name
    of the source, for errors. `error` is the error of reading it, if there was one: a client may report it as a network error.
    """

    def __init__(self, read_at: Callable[[int, int], bytes], nbytes: int, name: str = "") -> None:
        super().__init__()
        self._read_at, self.nbytes, self._name = read_at, nbytes, name
        self.rewind()

    @classmethod
    def of(cls, data: bytes) -> Content:
        """Return bytes as content."""
        return cls(lambda offset, size: data[offset : offset + size], len(data))

    def rewind(self) -> None:
        """Begin at the start again."""
        self._at, self._digest = 0, xxhash.xxh3_128()
        self.error: OSError | None = None

    def __len__(self) -> int:
        return self.nbytes

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(BLOCK_BYTES), b"")

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; none at the end.

        Raises:
            OSError: the source ends early, or cannot be read.
        """
        left = self.nbytes - self._at
        if not left:
            return b""
        try:
            self.note_progress()
            block = self._read_at(self._at, left if size < 0 else min(size, left))
            self.note_progress()
            if not block:
                raise OSError(EIO, f"the file ends {left} of {self.nbytes} bytes early", self._name)
        except OSError as error:
            self.error = error
            raise
        self._at += len(block)
        self._digest.update(block)
        return block

    def digest(self) -> str | None:
        """Return the xxh3_128 digest of the content, in hex; None unless all of it was read."""
        return self._digest.hexdigest() if self._at == self.nbytes else None


class TimeoutStore(Store):
    """A store that raises StoreUnavailable if no byte is read or written, and no answer comes, for `stall_seconds`."""

    def __init__(self, store: Store, stall_seconds: float) -> None:
        self._store, self._stall_seconds = store, stall_seconds
        self._lock = threading.Lock()
        self._stuck = 0
        self.url, self.copies_wanted = store.url, store.copies_wanted

    def put(self, name: str, content: Content) -> None:
        self._call(lambda: self._store.put(name, content), content)

    def get(self, name: str, into: BinaryIO) -> int:
        destination = _Destination(into)
        return self._call(lambda: self._store.get(name, cast(BinaryIO, destination)), destination)

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

    def _call(self, work: Callable[[], T], transfer: Transfer | None = None) -> T:
        transfer = Transfer() if transfer is None else transfer
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
                self._stuck -= transfer.is_abandoned

        start_thread("tranlogs-store", run)
        while not done.wait(min(_POLL_SECONDS, self._stall_seconds)):
            if time.monotonic() - transfer.moved_at > self._stall_seconds:
                with self._lock:
                    if not done.is_set():
                        transfer.is_abandoned = True
                        self._stuck += 1
                        raise StoreUnavailable(self.url, f"nothing moved for {self._stall_seconds:g} s")
        result, error = outcome[0]
        if error is not None:
            raise error
        return cast(T, result)


class _Destination(Transfer):
    """A file to which a call writes an object."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file

    def write(self, data: bytes) -> int:
        self.note_progress()
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()
