"""The scanner: finds a segment's records by plain reads. It uses no map, lock or LMDB, so no file content can crash it.

Records follow each other without gaps, so a scan goes from head to head. If the next head is missing or damaged, the scanner
searches for heads at every later multiple of 64 bytes. The records that it finds there are valid. The damaged records in
between are missing from the sequence numbers, and the caller reports them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..base.atomic_files import ReadFile
from ..base.config import FORMAT_VERSION
from ..base.errors import UnknownFormat
from .record_format import ALIGNMENT, HEAD, Location, Records, extent_end, unpack_head

_WINDOW_BYTES = 1 << 16  # bytes in one read while going from head to head; small records share a read
_SEARCH_BYTES = 4 << 20  # bytes in one read while searching


def scan(path: Path, segment_id: int, *, start: int = 0, last_sequence: int | None = None) -> list[Location]:
    """Return all valid heads of a segment from an offset on, in the order of the file. Descriptions are not read.

    Args:
        segment_id: id of the segment. Records with another id, which a recycled file still holds, are skipped.
        start: offset to begin at; a record must start there.
        last_sequence: sequence number of the segment's last record, if known (the segment is sealed). The scan ends there.

    Raises:
        UnknownFormat: a record of this segment was written by a newer version.
        CannotRead: the process lacks file handles, memory or permissions.
        OSError: the file cannot be opened.
    """
    with ReadFile(path) as file:
        found = list(_scanned(file.fd, segment_id, start, last_sequence))
        if last_sequence is None and not _is_unbroken(found):
            # The writer may have written records that the search has passed already. All records before the newest one found
            # are in the file by now, so a second scan finds them, unless they are damaged.
            last = found[-1].head.sequence
            found = [one for one in _scanned(file.fd, segment_id, start, None) if one.head.sequence <= last]
    refuse_newer(path, found)
    return found


def refuse_newer(path: Path, found: Sequence[Location]) -> None:
    """Check the format versions of records.

    Raises:
        UnknownFormat: a record was written by another version.
    """
    versions = found.versions if isinstance(found, Records) else {one.head.version for one in found}
    if others := versions - {FORMAT_VERSION}:
        raise UnknownFormat(path, max(others), FORMAT_VERSION)


def _is_unbroken(found: Sequence[Location]) -> bool:
    """Return True if no sequence number is missing between the first and the last record."""
    return all(b.head.sequence - a.head.sequence <= 1 for a, b in itertools.pairwise(found))


def _scanned(fd: int, segment_id: int, start: int, last_sequence: int | None) -> Iterator[Location]:
    size, at, newest = os.fstat(fd).st_size, start, -1
    window, base = b"", 0
    while at + HEAD.size <= size:
        if not base <= at <= base + len(window) - HEAD.size:
            window, base = _pread(fd, min(_WINDOW_BYTES, size - at), at), at
        head = unpack_head(window, at - base)
        if head is None or head.segment_id != segment_id or head.sequence < newest:
            if newest >= 0 and newest == last_sequence:
                return
            found = _search(fd, segment_id, at, size, newest)
            if found is None:
                return
            at, window = found, b""  # The window may be older than the head that was found.
            continue
        yield Location(head, at)
        # A record that ends after its file was cut off or has wrong lengths. Other records may follow its head.
        end = extent_end(at, head.payload_bytes, head.description_bytes)
        at = end if end <= size + ALIGNMENT else at + ALIGNMENT
        newest = head.sequence


def _search(fd: int, segment_id: int, start: int, size: int, newest: int) -> int | None:
    """Return the offset of the next head of this segment after `start`; None if there is none."""
    start, ours = (start + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT, segment_id.to_bytes(8, "little")
    for base in range(start, size, _SEARCH_BYTES):
        window = _pread(fd, min(_SEARCH_BYTES, size - base), base)
        at = window.find(ours)
        while at >= 0:
            row = at // ALIGNMENT * ALIGNMENT
            head = unpack_head(window, row)
            if head is not None and head.segment_id == segment_id and head.sequence >= newest:
                return base + row
            at = window.find(ours, row + ALIGNMENT)
    return None


def _pread(fd: int, size: int, offset: int) -> bytes:
    """Return `size` bytes. Bytes that the disk cannot read or that lie after the end of the file are zero."""
    try:
        return os.pread(fd, size, offset).ljust(size, b"\0")
    except OSError:
        if size <= 4096:
            return bytes(size)
        half = size // 2 // ALIGNMENT * ALIGNMENT
        return _pread(fd, half, offset) + _pread(fd, size - half, offset + half)
