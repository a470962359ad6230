"""Decoding of the records of a plan, in order and with bounded memory. Damage names the record in which it was met."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import CorruptRecord
from ..log.reader import Record, SegmentReader
from ..log.record_body import WHOLE
from ..log.record_format import RecordKind
from .history import Link
from .state_protocol import Recoverable

_CHUNK_FRAMES = 100_000  # descriptions in memory at a time
_CHUNK_SEGMENTS = 32

StepScalars = list[tuple[int, dict[str, float]]]  # a step, and the scalars that the loop noted at its boundary


class DamagedRecord(Exception):
    """A record of the plan cannot be read, or another rank's shard of it cannot.

    Attributes:
        is_boundary: True if the damage is in the auxiliary state of a boundary, so that a replay can pass it.
    """

    def __init__(self, link: Link, error: CorruptRecord, *, is_boundary: bool = False) -> None:
        self.link, self.error, self.is_boundary = link, error, is_boundary


@dataclass(slots=True)
class Chunk:
    """Consecutive records that were decoded together.

    Attributes:
        links: the links of steps and after-images.
        scalars: the scalars of the boundaries between them.
    """

    links: list[Link] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    scalars: StepScalars = field(default_factory=list)


def decode_chunks(links: Sequence[Link]) -> Iterator[Chunk]:
    """Decode records in order, a bounded number at a time. Their files stay open until the next chunk is decoded.

    Raises:
        DamagedRecord: the description of a record is damaged.
    """
    at = 0
    readers: dict[int, SegmentReader] = {}
    with ExitStack() as stack:
        while at < len(links):
            chunk, frames, used = Chunk(), 0, set[int]()
            with paused_collection():
                while at < len(links) and frames < _CHUNK_FRAMES and len(used) <= _CHUNK_SEGMENTS:
                    link = links[at]
                    ordinal = link.segment.row.ordinal
                    try:
                        if ordinal not in readers:
                            reader = SegmentReader(link.segment.path, link.segment.locations, reads_ahead=True)
                            readers[ordinal] = stack.enter_context(reader)
                        frames += _decode(link, readers[ordinal], chunk)
                    except (CorruptRecord, OSError) as error:
                        raise make_damaged(link, error) from None
                    used.add(ordinal)
                    at += 1
            yield chunk
            for ordinal in [o for o in readers if at >= len(links) or o != links[at].segment.row.ordinal]:
                readers.pop(ordinal).close()


def _decode(link: Link, reader: SegmentReader, chunk: Chunk) -> int:
    """Decode a record and add it to a chunk; return the size of its description in frames."""
    if link.kind == RecordKind.BOUNDARY:
        chunk.scalars.append((link.step, reader.scalars(link.location)))
        return 0
    record = reader.decode(link.location)
    if link.kind.is_boundary:
        chunk.scalars.append((link.step, record.scalars))
    chunk.links.append(link)
    chunk.records.append(record)
    return len(record.layout) + 4


def make_damaged(link: Link, error: CorruptRecord | OSError, *, is_boundary: bool = False) -> DamagedRecord:
    """Return the error for a record that cannot be read."""
    if isinstance(error, OSError):
        error = CorruptRecord(link.segment.path, str(error), step=link.step)
    return DamagedRecord(link, error, is_boundary=is_boundary or link.kind == RecordKind.BOUNDARY)


def read_boundary(state: Recoverable, link: Link) -> tuple[Any, dict[str, bytes]]:
    """Return the body of the boundary at which a plan ends, and the parts of that body.

    Raises:
        DamagedRecord: the boundary is damaged.
    """
    try:
        with SegmentReader(link.segment.path, link.segment.locations) as reader:
            record = reader.decode(link.location)
            return state.decode_boundary(record), {name: blob for name, blob in record.parts().items() if name != WHOLE}
    except (CorruptRecord, OSError) as error:
        raise make_damaged(link, error, is_boundary=True) from None


def require_sound(links: Sequence[Link]) -> None:
    """Read records, and compare all their checksums.

    Raises:
        DamagedRecord: a record is damaged.
    """
    for link in links:
        try:
            with SegmentReader(link.segment.path, link.segment.locations) as reader:
                for damage in reader.decode(link.location).find_damage():
                    raise damage
        except (CorruptRecord, OSError) as error:
            raise make_damaged(link, error) from None


def find_last_sound_boundary(links: Sequence[Link]) -> int:
    """Return the number of the newest boundary with sound arrays that lies before the last one, in its segment.

    If there is none, return the number of the record before the first link: what lies before was not looked at.

    A boundary refers to the arrays of earlier boundaries where these did not change. Damage to the arrays of the last boundary
    may thus be damage to a thousand others. To find that out one by one would cost a replay each.
    """
    segment, good = links[-1].segment, links[0].sequence - 1
    try:
        with SegmentReader(segment.path, segment.locations) as reader:
            for link in links[:-1]:
                if link.segment is not segment:
                    continue
                arrays = reader.decode(link.location).arrays()
                if link.kind.is_boundary and all(reader.is_sound(row) for _, row in arrays):
                    good = link.sequence
    except (CorruptRecord, OSError):
        pass
    return good


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector, for a block that makes many objects which live on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
