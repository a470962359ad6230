"""What is sent, opened and checked: every byte is verified before it leaves, and the files stay open until they have gone.

A segment is locked meanwhile as any reader does, so that its file is not reused; of a checkpoint that is deleted meanwhile
the open files go on to be.
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
from ...log.record import EntryKind, Head, Location
from ...log.scanner import scan
from .throttle import Throttle

_FILES = (STATE, META, MANIFEST)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file that becomes one object."""

    file: str
    fd: int
    start: int
    nbytes: int


@dataclass(slots=True)
class Source:
    """An item to be sent.

    Attributes:
        fds: its open files, by name.
        sizes: bytes that are sent of each.
        places: of a segment, for its row (`ShippedRow`).
    """

    fds: dict[str, int]
    sizes: dict[str, int]
    places: dict[str, Any] = field(default_factory=dict)

    def pieces(self) -> Iterator[Piece]:
        """In order."""
        for name, fd in self.fds.items():
            for start in range(0, max(self.sizes[name], 1), PART_BYTES_MAX):
                yield Piece(name, fd, start, min(PART_BYTES_MAX, self.sizes[name] - start))

    def close(self) -> None:
        """Let go of the files."""
        for fd in self.fds.values():
            with suppress(OSError):
                os.close(fd)
        self.fds = {}


def open_segment(folder: Path, row: SegmentRow) -> Source:
    """A sealed segment.

    Raises:
        CorruptRecord: it is damaged, or has been pruned.
        OSError: it cannot be opened.
    """
    path = folder / row.file
    with SegmentReader(path, uses_index=False) as reader:
        locations = scan(path, row.number, last_sequence=row.last_sequence or None)
        if not locations or locations[-1].head.sequence < row.last_sequence:
            raise CorruptRecord(path, "entries at its end are missing")
        end = max(row.used_bytes, _verified(reader, locations))
        fd = os.dup(reader.fd)  # with its lock
    nbytes = min(end, os.fstat(fd).st_size)
    return Source({row.file: fd}, {row.file: nbytes}, _places([one.head for one in locations]))


def read_chain(path: Path, row: SegmentRow, sequence: int) -> str | None:
    """The digest of a segment's entry, as the rows in a store name it; None if there is no such entry, or it is damaged.

    Raises:
        CannotRead: file handles, memory or rights are missing.
        OSError: it cannot be opened.
    """
    heads = [one.head for one in scan(path, row.number, last_sequence=row.last_sequence or None)]
    return next((_chain(head) for head in reversed(heads) if head.sequence == sequence), None)


def _chain(head: Head) -> str:
    return f"{head.chain if head.kind == EntryKind.SEGMENT else head.digest:016x}"


def _places(heads: Sequence[Head]) -> dict[str, Any]:
    """Where the chain comes from, and where it can go on."""
    last = heads[-1]
    found: dict[str, Any] = {"base_chain": f"{heads[0].chain:016x}", "end_sequence": last.sequence, "end_chain": _chain(last)}
    for head in reversed(heads):
        if head.kind == EntryKind.BOUNDARY:
            found |= {"boundary_step": head.step, "boundary_sequence": head.sequence, "boundary_chain": f"{head.digest:016x}"}
            break
    return found


def _verified(reader: SegmentReader, locations: list[Location]) -> int:
    """Check every entry; gives where the last of their bytes lies."""
    end = 0
    for entry, location in zip(reader.entries(locations), locations):
        for name, why in entry.damaged_tensors():
            raise CorruptRecord(reader.path, why, step=entry.step, tensor=name)
        for row in entry.arrays():
            if not reader.is_sound(row):
                raise CorruptRecord(reader.path, "the checksum of its bytes differs", step=entry.step, tensor=row[0])
        end = max(end, location.end)
    return end


def open_checkpoint(folder: Path, row: CheckpointRow) -> Source:
    """A checkpoint, every byte of it checked.

    Raises:
        CorruptCheckpoint: it is damaged.
        OSError: it cannot be opened; it may have been deleted.
    """
    path = folder / row.name
    with Checkpoint(path) as checkpoint:
        for _, damage in checkpoint.verify():
            if damage is not None:
                raise damage
    source = Source({}, {})
    try:
        for name in _FILES:
            source.fds[name] = os.open(path / name, os.O_RDONLY)
            source.sizes[name] = os.fstat(source.fds[name]).st_size
    except BaseException:
        source.close()
        raise
    return source


class PieceFile:
    """A piece as a file that is read in turn with others that send; it knows the digest of what was read."""

    def __init__(self, piece: Piece, throttle: Throttle) -> None:
        self._piece, self._throttle = piece, throttle
        self._at = 0
        self._digest = xxhash.xxh3_128()

    def read(self, size: int = -1) -> bytes:
        """The next bytes.

        Raises:
            LogUnavailable: the file is shorter than it was.
        """
        left = self._piece.nbytes - self._at
        size = min(left if size < 0 else min(size, left), self._throttle.portion)
        if size == 0:
            return b""
        self._throttle.take(size)
        data = os.pread(self._piece.fd, size, self._piece.start + self._at)
        if not data:
            raise LogUnavailable(f"{self._piece.file}: it became shorter while it was sent")
        self._at += len(data)
        self._digest.update(data)
        return data

    def tell(self) -> int:
        """How much was read."""
        return self._at

    def seek(self, offset: int) -> int:
        """Begin again; a store may send it twice."""
        assert offset == 0, "a piece is read from its start"
        self._at = 0
        self._digest.reset()
        return 0

    def __len__(self) -> int:
        return self._piece.nbytes

    def digest(self) -> str | None:
        """xxh3_128 of the piece, in hex; None unless all of it was read."""
        return self._digest.hexdigest() if self._at == self._piece.nbytes else None
