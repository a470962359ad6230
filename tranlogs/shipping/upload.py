"""Upload of one segment or checkpoint, in parts that any thread may send, in any order.

Every byte is checked before it is sent. A segment is locked as by any reader, so that its file is not reused during the upload.
A checkpoint that is deleted during the upload can still be read through its open files. A part is sent until the store holds
it, each time under a new name.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..base.config import PART_BYTES_MAX
from ..base.errors import CorruptRecord, StoreRefused, StoreUnavailable
from ..base.failpoints import hit
from ..catalog import CheckpointRow, SegmentRow
from ..checkpoints import Checkpoint
from ..checkpoints.folder import MANIFEST, META, STATE
from ..log.reader import SegmentReader
from ..log.record_format import Head, RecordKind
from ..log.scanner import scan
from ..stores import Content, Store
from .manifest import OBJECTS, ShippedItem, name_of

_BURST_SECONDS = 0.25
_PORTION_BYTES_MIN, _PORTION_BYTES_MAX = 64 << 10, 4 << 20


class Throttle:
    """Limits that all sending threads share: how many send at once, and the bandwidth of all together (None: no limit).

    A thread holds one of the `slots` while it sends. It takes at most `chunk_bytes` at once, so that each wait is short.
    """

    def __init__(self, bytes_per_second: float | None = None, senders: int = 2) -> None:
        self._rate, self.senders = bytes_per_second, senders
        self.slots = threading.BoundedSemaphore(senders)
        wanted = _PORTION_BYTES_MAX if bytes_per_second is None else int(bytes_per_second * _BURST_SECONDS)
        self.chunk_bytes = min(max(wanted, _PORTION_BYTES_MIN), _PORTION_BYTES_MAX)
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, nbytes: int) -> None:
        """Wait until `nbytes` may be sent."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - _BURST_SECONDS) + nbytes / self._rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an open file, which becomes the object number `number` of its item."""

    number: int
    file: str
    fd: int
    start: int
    nbytes: int


class Upload:
    """A segment or checkpoint that is being uploaded. `name` is its name in the manifest."""

    def __init__(self, row: SegmentRow | CheckpointRow, journal: Path) -> None:
        self.row, self.name, self._journal = row, name_of(row), journal
        self._lock = threading.Lock()
        self._source: Source | None = None
        self._is_opened = self._is_closed = False
        self._todo: list[Part] = []
        self._in_flight = 0
        self._sent: dict[int, tuple[str, list[Any]]] = {}  # by number: the file, and [name, bytes, digest] of the object
        self._count = 0

    @property
    def work(self) -> int:
        """The number of pieces that `claim` would return now."""
        with self._lock:
            return len(self._todo) if self._is_opened else 1

    def claim(self) -> Part | Literal["open"] | None:
        """Return a part, which the caller must send, or "open" to the first caller; None if nothing is to be done now."""
        with self._lock:
            if not self._is_opened:
                self._is_opened = True
                return "open"
            if not self._todo or self._is_closed:
                return None
            self._in_flight += 1
            return self._todo.pop(0)

    def open(self) -> None:
        """Open and verify the item's files.

        Raises:
            CorruptRecord, CorruptCheckpoint: the item is damaged.
            OSError: the item cannot be opened, or was deleted.
        """
        if isinstance(self.row, SegmentRow):
            source = open_segment(self._journal / "log", self.row)
        else:
            source = open_checkpoint(self._journal / "checkpoints", self.row)
        with self._lock:
            self._source, self._todo = source, source.parts()
            self._count = len(self._todo)
            self._close_if_idle()

    def send(self, part: Part, store: Store, prefix: str, writer: str, throttle: Throttle) -> None:
        """Send a part as an object with a new name, and check that the store holds the object.

        Raises:
            StoreUnavailable, StoreRefused, OSError: the part was not sent, and can be claimed again.
        """

        def read_at(offset: int, size: int) -> bytes:
            size = min(size, throttle.chunk_bytes)
            throttle.take(size)
            return os.pread(part.fd, size, part.start + offset)

        stem = f"log/{self.name}" if isinstance(self.row, SegmentRow) else f"checkpoints/{self.name}/{part.file}"
        name = f"{prefix}/{OBJECTS}/{stem}.{part.number:05d}-{writer[:8]}{secrets.token_hex(4)}"
        sent = None
        try:
            content = Content(read_at, part.nbytes, part.file)
            store.put(name, content)
            hit("ship.sent")
            status, digest = store.stat(name), content.digest()
            if digest is None or status is None or not status.is_complete or status.nbytes != part.nbytes:
                raise StoreUnavailable(store.url, f"{name} was written, but the store does not hold it in full ({status})")
            sent = part.file, [name, part.nbytes, digest]
        finally:
            with self._lock:
                self._in_flight -= 1
                if sent is not None:
                    self._sent[part.number] = sent
                else:  # After any error, the part must be claimed again.
                    self._todo.insert(0, part)
                self._close_if_idle()
            if sent is None:
                with suppress(StoreUnavailable, StoreRefused):
                    store.delete(name)

    @property
    def is_complete(self) -> bool:
        """True if the store holds every part."""
        with self._lock:
            return self._source is not None and len(self._sent) == self._count

    def sent_objects(self) -> list[str]:
        """Return the names of the objects that were sent so far."""
        with self._lock:
            return [part[0] for _, part in self._sent.values()]

    def to_item(self, now: float) -> ShippedItem:
        """Return the complete item as the manifest describes it."""
        assert self._source is not None
        files: dict[str, list[list[Any]]] = {}
        for _, (file, part) in sorted(self._sent.items()):
            files.setdefault(file, []).append(part)
        return ShippedItem(self.row, files, at=now, **self._source.chain_ends)

    def close(self) -> None:
        """Send no more parts, and close the files as soon as no thread reads them."""
        with self._lock:
            self._is_closed = True
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._is_closed and self._source is not None and not self._in_flight:
            self._source.close()


@dataclass(slots=True)
class Source:
    """The open files of an item: by name, the file descriptor and the number of bytes to send.

    `chain_ends` are, for a segment, the ends of its part of the log's chain, as fields of `ShippedItem`.
    """

    files: dict[str, tuple[int, int]]
    chain_ends: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> list[Part]:
        """Return the parts to send, in order."""
        found: list[Part] = []
        for name, (fd, nbytes) in self.files.items():
            for start in range(0, max(nbytes, 1), PART_BYTES_MAX):
                found.append(Part(len(found), name, fd, start, min(PART_BYTES_MAX, nbytes - start)))
        return found

    def close(self) -> None:
        """Close the files."""
        for fd, _ in self.files.values():
            with suppress(OSError):
                os.close(fd)
        self.files = {}


def open_checkpoint(folder: Path, row: CheckpointRow) -> Source:
    """Open and verify a checkpoint.

    Raises:
        CorruptCheckpoint: the checkpoint is damaged.
        OSError: the checkpoint cannot be opened; it may have been deleted.
    """
    path = folder / row.name
    with Checkpoint(path) as checkpoint:
        checkpoint.demand_sound()
    source = Source({})
    try:
        for name in (STATE, META, MANIFEST):
            fd = os.open(path / name, os.O_RDONLY)
            source.files[name] = fd, os.fstat(fd).st_size
    except BaseException:
        source.close()
        raise
    return source


def open_segment(folder: Path, row: SegmentRow) -> Source:
    """Open and verify a sealed segment.

    Raises:
        CorruptRecord: the segment is damaged, or has been pruned.
        OSError: the segment cannot be opened.
    """
    path = folder / row.file
    with SegmentReader(path) as reader:
        locations = scan(path, row.number, last_sequence=row.last_sequence or None)
        if not locations or locations[-1].head.sequence < row.last_sequence:
            raise CorruptRecord(path, "records at its end are missing")
        for record in reader.records(locations):
            for damage in record.find_damage():
                raise damage
        end = max(row.used_bytes, *(location.end for location in locations))
        fd = os.dup(reader.fd)  # The duplicate keeps the lock.
    return Source({row.file: (fd, min(end, os.fstat(fd).st_size))}, _chain_ends([item.head for item in locations]))


def _chain_ends(heads: Sequence[Head]) -> dict[str, Any]:
    """Return the ends of a segment's part of the log's chain: its beginning, and the points where the log can continue."""
    last = heads[-1]
    found: dict[str, Any] = {"base_chain": f"{heads[0].chain:016x}", "end_sequence": last.sequence, "end_chain": _chain(last)}
    for head in reversed(heads):
        if head.kind.is_boundary:
            found |= {"boundary_step": head.step, "boundary_sequence": head.sequence, "boundary_chain": f"{head.digest:016x}"}
            break
    return found


def read_chain(path: Path, row: SegmentRow, sequence: int) -> str | None:
    """Return the digest of a segment's record, as `ShippedItem` has it; None if the record is missing or damaged.

    Raises:
        CannotRead: file handles, memory or rights are missing.
        OSError: the segment cannot be opened.
    """
    heads = [item.head for item in scan(path, row.number, last_sequence=row.last_sequence or None)]
    return next((_chain(head) for head in reversed(heads) if head.sequence == sequence), None)


def _chain(head: Head) -> str:
    return f"{head.chain if head.kind == RecordKind.SEGMENT else head.digest:016x}"
