"""The open files of an item that is uploaded. Every byte is checked before it is sent.

A segment is locked as by any reader, so that its file is not reused during the upload. A checkpoint that is deleted during the
upload can still be read through its open files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from ...base.config import PART_BYTES_MAX
from ...base.errors import CorruptRecord, LogUnavailable
from ...catalog import CheckpointRow, SegmentRow
from ...checkpoints import Checkpoint
from ...checkpoints.folder import MANIFEST, META, STATE
from ...log.reader import SegmentReader
from ...log.record_format import EntryKind, Head, Location
from ...log.scanner import scan
from .throttle import Throttle

_FILES = (STATE, META, MANIFEST)


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file that becomes one object.

    Attributes:
        file: name of the file.
        fd: the open file.
        start: offset of the part.
        nbytes: its size.
    """

    file: str
    fd: int
    start: int
    nbytes: int


@dataclass(slots=True)
class UploadSource:
    """The open files of an item.

    Attributes:
        fds: open files by name.
        sizes: number of bytes to send of each.
        chain_ends: for a segment, the ends of its part of the log's chain, as fields of `ShippedRow`.
    """

    fds: dict[str, int]
    sizes: dict[str, int]
    chain_ends: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> Iterator[FilePart]:
        """Yield the parts to send, in order."""
        for name, fd in self.fds.items():
            for start in range(0, max(self.sizes[name], 1), PART_BYTES_MAX):
                yield FilePart(name, fd, start, min(PART_BYTES_MAX, self.sizes[name] - start))

    def close(self) -> None:
        """Close the files."""
        for fd in self.fds.values():
            with suppress(OSError):
                os.close(fd)
        self.fds = {}


def open_segment(folder: Path, row: SegmentRow) -> UploadSource:
    """Open and verify a sealed segment.

    Raises:
        CorruptRecord: the segment is damaged, or has been pruned.
        OSError: the segment cannot be opened.
    """
    path = folder / row.file
    with SegmentReader(path, uses_index=False) as reader:
        locations = scan(path, row.number, last_sequence=row.last_sequence or None)
        if not locations or locations[-1].head.sequence < row.last_sequence:
            raise CorruptRecord(path, "entries at its end are missing")
        end = max(row.used_bytes, _verify(reader, locations))
        fd = os.dup(reader.fd)  # The duplicate keeps the lock.
    nbytes = min(end, os.fstat(fd).st_size)
    return UploadSource({row.file: fd}, {row.file: nbytes}, _chain_ends([item.head for item in locations]))


def read_chain(path: Path, row: SegmentRow, sequence: int) -> str | None:
    """Return the digest of a segment's entry, as rows `shipped/` contain it; None if the entry is missing or damaged.

    Raises:
        CannotRead: file handles, memory or rights are missing.
        OSError: the segment cannot be opened.
    """
    heads = [item.head for item in scan(path, row.number, last_sequence=row.last_sequence or None)]
    return next((_chain(head) for head in reversed(heads) if head.sequence == sequence), None)


def _chain(head: Head) -> str:
    return f"{head.chain if head.kind == EntryKind.SEGMENT else head.digest:016x}"


def _chain_ends(heads: Sequence[Head]) -> dict[str, Any]:
    """Return the ends of a segment's part of the log's chain: its beginning, and the points where the log can continue."""
    last = heads[-1]
    found: dict[str, Any] = {"base_chain": f"{heads[0].chain:016x}", "end_sequence": last.sequence, "end_chain": _chain(last)}
    for head in reversed(heads):
        if head.kind == EntryKind.BOUNDARY:
            found |= {"boundary_step": head.step, "boundary_sequence": head.sequence, "boundary_chain": f"{head.digest:016x}"}
            break
    return found


def _verify(reader: SegmentReader, locations: list[Location]) -> int:
    """Check every entry; return the offset after the last byte of all entries."""
    end = 0
    for entry, location in zip(reader.entries(locations), locations):
        for name, why in entry.damaged_tensors():
            raise CorruptRecord(reader.path, why, step=entry.step, tensor=name)
        for row in entry.arrays():
            if not reader.is_sound(row):
                raise CorruptRecord(reader.path, "the checksum of its bytes differs", step=entry.step, tensor=row[0])
        end = max(end, location.end)
    return end


def open_checkpoint(folder: Path, row: CheckpointRow) -> UploadSource:
    """Open and verify a checkpoint.

    Raises:
        CorruptCheckpoint: the checkpoint is damaged.
        OSError: the checkpoint cannot be opened; it may have been deleted.
    """
    path = folder / row.name
    with Checkpoint(path) as checkpoint:
        for _, damage in checkpoint.verify():
            if damage is not None:
                raise damage
    source = UploadSource({}, {})
    try:
        for name in _FILES:
            source.fds[name] = os.open(path / name, os.O_RDONLY)
            source.sizes[name] = os.fstat(source.fds[name]).st_size
    except BaseException:
        source.close()
        raise
    return source


class PartReader:
    """A part as a file for reading, with limited bandwidth. It computes the digest of the bytes that are read."""

    def __init__(self, part: FilePart, throttle: Throttle) -> None:
        self._part, self._throttle = part, throttle
        self._at = 0
        self._digest = xxhash.xxh3_128()

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes.

        Raises:
            LogUnavailable: the file has become shorter.
        """
        left = self._part.nbytes - self._at
        size = min(left if size < 0 else min(size, left), self._throttle.chunk_bytes)
        if size == 0:
            return b""
        self._throttle.take(size)
        data = os.pread(self._part.fd, size, self._part.start + self._at)
        if not data:
            raise LogUnavailable(f"{self._part.file}: the file became shorter while it was sent")
        self._at += len(data)
        self._digest.update(data)
        return data

    def tell(self) -> int:
        """Return the number of bytes that were read since the start of the part."""
        return self._at

    def seek(self, offset: int) -> int:
        """Return to the start of the part, because a store may send a part twice."""
        assert offset == 0, "a part can be read again from its start only"
        self._at = 0
        self._digest.reset()
        return 0

    def __len__(self) -> int:
        return self._part.nbytes

    def digest(self) -> str | None:
        """Return the xxh3_128 digest of the part, in hex; None unless all of it was read."""
        return self._digest.hexdigest() if self._at == self._part.nbytes else None
