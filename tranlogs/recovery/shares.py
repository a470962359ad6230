"""Records that ranks divided among themselves, put together again from their journals.

Under data parallelism the gradients of a step are the same on all ranks, so each logs a range of their elements. A record
says so in its body: `share` = (rank, number of ranks), and `copies` = 2 if it has the next rank's range, too. Who wants to
redo the step reads the others' journals, which takes no lock of theirs and blocks nobody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..codec.entry import EntryKind, Part
from ..errors import CorruptRecord, MissingShare
from ..types import ITEMSIZE, AnyArray, Array, Bytes
from ..wal.reader import Entry, Frame, SegmentReader
from .history import Link
from .holding import LocalLog

Decode = Callable[[Entry], Any]


class PeerLog:
    """The step records of another rank's journal, of the era that began with the timeline `since`."""

    def __init__(self, rank: int, folder: Path, since: int, ignored: Collection[int] = ()) -> None:
        self.rank, self.folder = rank, folder
        log = LocalLog.read(folder, since, ignored)
        self._links = {link.step: link for run in log.history.runs for link in run if link.kind == EntryKind.STEP}
        self._starts = sorted(row.sequence for row in log.checkpoints)
        self._readers: dict[int, SegmentReader] = {}
        self._seen: dict[int, int] = {}  # by segment: up to which sequence number it was decoded

    def entry(self, step: int) -> Entry:
        """The record of a step. Cheap if steps are asked for in order.

        Raises:
            MissingShare: it is not there, or damaged.
        """
        link = self._links.get(step)
        if link is None:
            raise MissingShare(self.folder, self.rank, "it is not in the log", step=step)
        try:
            reader = self._reader(link)
            self._prepare(reader, link)
            return reader.decode(link.location)
        except (CorruptRecord, OSError) as error:
            raise MissingShare(self.folder, self.rank, str(error), step=step) from None

    def _reader(self, link: Link) -> SegmentReader:
        ordinal = link.segment.row.ordinal
        if ordinal not in self._readers:
            self._readers[ordinal] = SegmentReader(link.segment.path)
        return self._readers[ordinal]

    def _prepare(self, reader: SegmentReader, link: Link) -> None:
        """Decode what may have defined something that this entry uses: all since the checkpoint before it."""
        ordinal = link.segment.row.ordinal
        start = max((sequence for sequence in self._starts if sequence < link.sequence), default=-1)
        start = max(start, self._seen.get(ordinal, -1))
        for location in link.segment.locations:
            if start < location.head.sequence < link.sequence and location.head.kind != EntryKind.SEGMENT:
                with suppress(CorruptRecord):  # it matters only if it is asked for
                    reader.decode(location)
        self._seen[ordinal] = link.sequence

    def close(self) -> None:
        """Close its files."""
        for reader in self._readers.values():
            reader.close()
        self._readers, self._seen = {}, {}


class Shares:
    """The journals of all ranks but one's own, of one era. Use it as a context."""

    def __init__(self, folders: Mapping[int, Path], since: int, ignored: Collection[int] = ()) -> None:
        self._folders, self._since, self._ignored = folders, since, ignored
        self._peers: dict[int, PeerLog] = {}

    def __enter__(self) -> Shares:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers = {}

    def whole(self, entry: Entry, body: dict[str, Any], decode: Decode) -> Entry:
        """The entry, with the others' shares if it is one.

        Raises:
            MissingShare: one is not there, is damaged, or belongs to another history.
        """
        if "share" not in body or isinstance(entry, WholeEntry):
            return entry
        rank, world = body["share"]
        parts, missing = {rank: entry}, {}
        for other in range(world):
            if other != rank:
                try:
                    parts[other] = self._part(other, entry.step, body, decode)
                except MissingShare as error:
                    missing[other] = error
        for other, why in missing.items():
            if body.get("copies", 1) == 1 or (other - 1) % world not in parts:
                raise why
        return WholeEntry(list(parts.values()))

    def _part(self, rank: int, step: int, body: dict[str, Any], decode: Decode) -> Entry:
        if rank not in self._folders:
            raise MissingShare(f"rank {rank}", rank, "its journal is not there", step=step)
        if rank not in self._peers:
            self._peers[rank] = PeerLog(rank, self._folders[rank], self._since, self._ignored)
        peer = self._peers[rank]
        entry = peer.entry(step)
        try:
            theirs = decode(entry)
        except CorruptRecord as error:
            raise MissingShare(peer.folder, rank, str(error), step=step) from None
        if tuple(theirs.get("share", ())) != (rank, body["share"][1]):
            raise MissingShare(peer.folder, rank, "its record is no share of this step", step=step)
        if theirs["fingerprint"] == body["fingerprint"] and theirs["digests"] != body["digests"]:
            raise MissingShare(peer.folder, rank, "its parameters were others after it than those of the rank that reads it",
                               step=step)  # fmt: skip
        return entry


class WholeEntry(Entry):
    """A record with its tensors joined from the shares of all ranks; everything else is the first one's."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Entry]) -> None:
        own = parts[0]
        super().__init__(own.reader, own.head, own.frames, own.blob, own.named, own.scalars)
        self.parts = parts

    def tensor_names(self) -> list[str]:
        """Names of the tensors of all parts."""
        return list(dict.fromkeys(name for part in self.parts for name in part._by_name()))

    def frames_of(self, name: str) -> list[Frame]:
        """The frames that make up a tensor, from whichever rank."""
        return [frame for frame, _ in self._located(name)]

    def read(self, name: str, out: Bytes | None = None) -> AnyArray | None:
        """A tensor, joined from its ranges; see `Entry.read`."""
        located = self._located(name)
        first, owner = located[0]
        if first.part != Part.DENSE or first.spec.piece is None:
            return owner.read(name, out)
        spec = first.spec
        itemsize, total = ITEMSIZE[spec.dtype], math.prod(spec.shape)
        nbytes = total * itemsize
        data = out[:nbytes] if out is not None and out.nbytes >= nbytes else np.empty(nbytes, np.uint8)
        at = 0
        for offset, copies in itertools.groupby(sorted(located, key=_offset), key=_offset):
            frames = list(copies)
            frame, part = frames[0]
            piece = frame.spec.piece
            if piece is None or any(_layout(frame) != _layout(first) for frame, _ in frames) or offset != at:
                raise CorruptRecord(part.reader.path, f"its shares do not fit together at element {at}", step=self.step,
                                    tensor=name)  # fmt: skip
            end = at + piece.length[0]
            self._read_one(frames, data[at * itemsize : end * itemsize])
            at = end
        if at != total:
            raise CorruptRecord(self.reader.path, f"elements {at} to {total} are in no share", step=self.step, tensor=name)
        return Array(spec.dtype, spec.shape, data, spec.strides)

    def _read_one(self, copies: Sequence[tuple[Frame, Entry]], out: Bytes) -> None:
        """A range of a tensor, from the first copy that is sound."""
        for i, (frame, part) in enumerate(copies):
            try:
                part.reader.read_dense(frame, self.step, out)
                return
            except CorruptRecord:
                if i + 1 == len(copies):
                    raise

    def _located(self, name: str) -> list[tuple[Frame, Entry]]:
        return [(frame, part) for part in self.parts for frame in part._by_name().get(name, ())]


def _offset(located: tuple[Frame, Entry]) -> int:
    piece = located[0].spec.piece
    return piece.offset[0] if piece is not None else -1


def _layout(frame: Frame) -> tuple[Any, ...]:
    return frame.spec.dtype, frame.spec.shape, frame.spec.strides
