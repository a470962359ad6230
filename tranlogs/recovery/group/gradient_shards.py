"""Records that ranks divided among themselves, put together again from their journals.

Under data parallelism the gradients of a step are the same on all ranks, so each logs a range of their elements. A record
says so in its body: `share` = (rank, number of ranks), and `copies` = 2 if it has the next rank's range, too. Who wants to
redo the step reads the others' journals, which takes no lock of theirs and blocks nobody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import CorruptRecord, MissingShare
from ...base.types import ITEMSIZE, AnyArray, Array, Bytes
from ...log.entry import Entry
from ...log.reader import SegmentReader
from ...log.record import EntryKind
from ..history import Link
from .journal_summary import LocalLog

Decode = Callable[[Entry], Any]


class PeerLog:
    """The step records of another rank's journal, of the era that began with the timeline `since`."""

    def __init__(self, rank: int, folder: Path, since: int, ignored: Collection[int] = ()) -> None:
        self.rank, self.folder = rank, folder
        log = LocalLog.read(folder, since, ignored)
        self._links = {link.step: link for run in log.history.runs for link in run if link.kind == EntryKind.STEP}
        self._readers: dict[int, SegmentReader] = {}

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
            return reader.decode(link.location)
        except (CorruptRecord, OSError) as error:
            raise MissingShare(self.folder, self.rank, str(error), step=step) from None

    def _reader(self, link: Link) -> SegmentReader:
        ordinal = link.segment.row.ordinal
        if ordinal not in self._readers:
            self._readers[ordinal] = SegmentReader(link.segment.path, link.segment.locations)
        return self._readers[ordinal]

    def close(self) -> None:
        """Close its files."""
        for reader in self._readers.values():
            reader.close()
        self._readers = {}


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
                    parts[other] = self._part(other, entry, body, decode)
                except MissingShare as error:
                    missing[other] = error
        for other, why in missing.items():
            if body.get("copies", 1) == 1 or (other - 1) % world not in parts:
                raise why
        return WholeEntry(list(parts.values()))

    def _part(self, rank: int, own: Entry, body: dict[str, Any], decode: Decode) -> Entry:
        step, digests = own.step, own.digests
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
        if theirs["fingerprint"] == body["fingerprint"] and entry.digests != digests:
            raise MissingShare(peer.folder, rank, "its parameters were others after it than those of the rank that reads it",
                               step=step)  # fmt: skip
        return entry


class WholeEntry(Entry):
    """A record with its tensors joined from the shares of all ranks; everything else is the first one's."""

    def __init__(self, parts: Sequence[Entry]) -> None:
        self.__dict__.update(parts[0].__dict__)
        self.shares = parts

    def tensor_names(self) -> list[str]:
        """Return the names of the tensors of all shares."""
        return list(dict.fromkeys(name for part in self.shares for name in part.tensor_names()))

    def read(self, name: str, out: Bytes | None = None) -> AnyArray | None:
        """Return a tensor, joined from its ranges; see `Entry.read`."""
        located = [(slot, part) for part in self.shares for slot in part.layout.index.get(name, ())]
        slot, owner = located[0]
        spec = owner.layout.tensors[slot]
        if spec.piece is None or slot in owner.absent or slot in owner.sparse:
            return owner.read(name, out)
        itemsize, total = ITEMSIZE[spec.dtype], math.prod(spec.shape)
        nbytes = total * itemsize
        data = out[:nbytes] if out is not None and out.nbytes >= nbytes else np.empty(nbytes, np.uint8)
        at = 0
        for offset, group in itertools.groupby(sorted(located, key=_offset), key=_offset):
            copies = list(group)
            first, part = copies[0]
            piece = part.layout.tensors[first].piece
            if piece is None or any(_kind(copy) != _kind(located[0]) for copy in copies) or offset != at:
                raise CorruptRecord(part.reader.path, f"its shares do not fit together at element {at}", step=self.step,
                                    tensor=name)  # fmt: skip
            end = at + piece.length[0]
            _read_one(copies, data[at * itemsize : end * itemsize])
            at = end
        if at != total:
            raise CorruptRecord(self.reader.path, f"elements {at} to {total} are in no share", step=self.step, tensor=name)
        return Array(spec.dtype, spec.shape, data, spec.strides)


_Located = tuple[int, Entry]  # index in the layout of a share


def _read_one(copies: Sequence[_Located], out: Bytes) -> None:
    """Read a range of a tensor, from the first copy that is sound."""
    for i, (slot, part) in enumerate(copies):
        try:
            part.read_slot(slot, out)
            return
        except CorruptRecord:
            if i + 1 == len(copies):
                raise


def _offset(located: _Located) -> int:
    slot, part = located
    piece = part.layout.tensors[slot].piece
    return piece.offset[0] if piece is not None else -1


def _kind(located: _Located) -> tuple[Any, ...]:
    slot, part = located
    spec = part.layout.tensors[slot]
    return spec.dtype, spec.shape, spec.strides
