"""Find a segment's entries by plain reads: no map, no tree, no lock, so no content of the file can kill the reader.

A head is found by LMDB's page header in front of it (page number equals position, overflow flag) and its own magic,
checksum and segment id. Whatever else the file holds (tree pages, stale entries of an earlier use, garbage) is passed.

The lengths by which a scan could leap over values have no checksum: a damaged one hides what follows. So a scan leaps
only where it is known which entry is the last, and looks at every page if one is missing then.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..codec.entry import HEAD, MAGIC, OVERFLOW_FLAG, PAGE_HEADER_BYTES, EntryKind, Head, unpack_head
from ..config import FORMAT_VERSION
from ..durable import ReadFile
from ..errors import UnknownFormat

_FIRST_PAGE = 2  # behind LMDB's meta pages
_WINDOW_PAGES, _WINDOW_PAGES_LEAPING = 256, 32
_PAGE_SIZES = (4096, 16384, 32768, 65536)


@dataclass(frozen=True, slots=True)
class Location:
    """Where an entry's payload lies in its file."""

    head: Head
    offset: int  # of the payload, in bytes
    page_bytes: int  # of the machine that wrote the file

    @property
    def end(self) -> int:
        """Where the payload ends in its file."""
        return self.offset + self.head.length


def scan(path: Path, segment_id: int, *, last_sequence: int | None = None) -> list[Location]:
    """All sound heads of a segment, in the order of their sequence numbers (payloads are not read).

    Args:
        path: the file.
        segment_id: entries of other segments (earlier uses of the file) are passed over.
        last_sequence: number of the segment's last entry, where that is known (it is sealed): makes the scan faster.

    Raises:
        UnknownFormat: an entry of this segment was written by a newer version.
        OSError: the file cannot be opened.
        CannotRead: it cannot be opened, for want of file handles, memory or rights.
    """
    with ReadFile(path) as file:
        found: list[Location] = []
        if last_sequence is not None:
            found = _scan(file.fd, segment_id, leaps=True)
        if not _is_whole(found, last_sequence):
            found = _scan(file.fd, segment_id, leaps=False)
        if last_sequence is None and not _is_unbroken(found):
            # It may be written now, and the writer have overtaken the scan between two windows. All that lies before the
            # newest entry seen is in the file by now: a second scan sees it, unless it is damaged.
            last = found[-1].head.sequence
            found = [location for location in _scan(file.fd, segment_id, leaps=False) if location.head.sequence <= last]
    for location in found:
        if location.head.version != FORMAT_VERSION:
            raise UnknownFormat(path, location.head.version, FORMAT_VERSION)
    return found


def _is_whole(found: Sequence[Location], last_sequence: int | None) -> bool:
    if last_sequence is None or not found or found[0].head.kind != EntryKind.SEGMENT:
        return False
    return found[-1].head.sequence >= last_sequence and _is_unbroken(found)


def _is_unbroken(found: Sequence[Location]) -> bool:
    return all(b.head.sequence - a.head.sequence <= 1 for a, b in itertools.pairwise(found))


def _scan(fd: int, segment_id: int, *, leaps: bool) -> list[Location]:
    for page_bytes in _PAGE_SIZES:
        heads = _leaping if leaps else _every
        found = [location for location in heads(fd, page_bytes) if location.head.segment_id == segment_id]
        if found:
            return sorted(found, key=lambda location: (location.head.sequence, location.offset))
        if page_bytes == os.sysconf("SC_PAGE_SIZE") and not _looks_foreign(fd, page_bytes):
            break
    return []


def _looks_foreign(fd: int, page_bytes: int) -> bool:
    """Whether page 1 (LMDB's second meta page) is not where this machine's page size would have it."""
    return int.from_bytes(_pread(fd, 8, page_bytes), "little") != 1


def _every(fd: int, page_bytes: int) -> Iterator[Location]:
    """Heads on all pages, from the last to the first: so no entry of a file that is written meanwhile is found without
    those before it."""
    for stop in range(os.fstat(fd).st_size // page_bytes, _FIRST_PAGE, -_WINDOW_PAGES):
        start = max(_FIRST_PAGE, stop - _WINDOW_PAGES)
        for _, _, location in _values(fd, start, stop - start, page_bytes):
            if location is not None:
                yield location


def _leaping(fd: int, page_bytes: int) -> Iterator[Location]:
    """Heads that are found by leaping from value to value."""
    pages, page = os.fstat(fd).st_size // page_bytes, _FIRST_PAGE
    while page < pages:
        stop = min(page + _WINDOW_PAGES_LEAPING, pages)
        for at, run, location in _values(fd, page, stop - page, page_bytes):
            if at >= page:
                page = at + max(run, 1)
                if location is not None:
                    yield location
        page = max(page, stop)


def _values(fd: int, start: int, count: int, page_bytes: int) -> Iterator[tuple[int, int, Location | None]]:
    """The pages from `start` on where a value begins: page number, length in pages, and the head if it is one."""
    window = _pread(fd, count * page_bytes, start * page_bytes)
    rows = np.frombuffer(window, np.uint8).reshape(count, page_bytes)
    numbers = rows[:, :8].copy().view("<u8").ravel()
    flags = rows[:, 10:12].copy().view("<u2").ravel()
    ours = np.flatnonzero((numbers == np.arange(start, start + count, dtype=np.uint64)) & (flags == OVERFLOW_FLAG))
    for row in ours.tolist():
        at = row * page_bytes + PAGE_HEADER_BYTES
        head = unpack_head(window[at : at + HEAD.size]) if window[at : at + 4] == MAGIC else None
        run = int.from_bytes(window[at - 4 : at], "little")
        location = None if head is None else Location(head, start * page_bytes + at + HEAD.size, page_bytes)
        yield start + row, run, location


def _pread(fd: int, size: int, offset: int) -> bytes:
    """`size` bytes; what the disk cannot read, or the file does not have, is zero."""
    try:
        return os.pread(fd, size, offset).ljust(size, b"\0")
    except OSError:
        if size <= _PAGE_SIZES[0]:
            return bytes(size)
        half = size // 2
        return _pread(fd, half, offset) + _pread(fd, size - half, offset + half)
