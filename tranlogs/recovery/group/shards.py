"""Gradient shards: records that ranks divided among themselves, joined from their journals.

Under data parallelism the gradients of a step are the same on all ranks, so each rank logs a range of their elements: its
shard. The body of such a record holds `share` = (rank, number of ranks), and `copies` = 2 if the record also holds the
next rank's shard. To redo the step, a rank reads the journals of the others. Reading takes no lock and blocks no writer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import CorruptRecord, MissingShard
from ...base.types import ITEMSIZE, AnyArray, Array, Bytes
from ...log.reader import Record, SegmentReader
from ..history import Link
from .journals import GenerationLog

Decode = Callable[[Record], Any]
_Located = tuple[int, Record]  # the index of a tensor in the layout of a shard, and the shard


class PeerJournal:
    """The step records of one generation in another rank's journal."""

    def __init__(self, rank: int, folder: Path, log: GenerationLog) -> None:
        self.rank, self.folder = rank, folder
        self._links = {link.step: link for run in log.history.runs for link in run if link.kind.is_step}
        self._readers: dict[int, SegmentReader] = {}

    def read_record(self, step: int) -> Record:
        """Return the record of a step. This is cheap if steps are asked for in order.

        Raises:
            MissingShard: the record is missing or damaged.
        """
        link = self._links.get(step)
        if link is None:
            raise MissingShard(self.folder, self.rank, "it is not in the log", step=step)
        try:
            return self._open_reader(link).decode(link.location)
        except (CorruptRecord, OSError) as error:
            raise MissingShard(self.folder, self.rank, str(error), step=step) from None

    def _open_reader(self, link: Link) -> SegmentReader:
        ordinal = link.segment.row.ordinal
        if ordinal not in self._readers:
            self._readers[ordinal] = SegmentReader(link.segment.path, link.segment.locations)
        return self._readers[ordinal]

    def close(self) -> None:
        """Close all open segments."""
        for reader in self._readers.values():
            reader.close()
        self._readers = {}


class GradientShards:
    """The journals of one generation of all other ranks, which hold the other gradient shards. Use it as a context.

    Attributes:
        notes: what was damaged and read from a copy instead, one sentence for each step and file.
    """

    def __init__(self, folders: Mapping[int, Path], read_log: Callable[[int], GenerationLog]) -> None:
        self._folders, self._read_log = folders, read_log
        self._peers: dict[int, PeerJournal] = {}
        self._noted: dict[tuple[int | None, str], str] = {}

    @property
    def notes(self) -> list[str]:
        return list(self._noted.values())

    def __enter__(self) -> GradientShards:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers = {}

    def join(self, record: StepRecord, body: dict[str, Any], decode: Decode) -> StepRecord:
        """Return a record with its body as one with the shards of all ranks; the record itself if it holds no shard.

        Raises:
            MissingShard: a shard is missing, is damaged, or belongs to another history.
        """
        if "share" not in body or isinstance(record, JoinedRecord):
            return record
        rank, world = body["share"]
        parts, missing = {rank: record}, {}
        for other in range(world):
            if other != rank:
                try:
                    parts[other] = self._read_shard(other, record, body, decode)
                except MissingShard as error:
                    missing[other] = error
        for other, failure in missing.items():
            if body.get("copies", 1) == 1 or (other - 1) % world not in parts:
                raise failure
            self._note_copy(failure)
        return JoinedRecord(list(parts.values()), self._note_copy)

    def _note_copy(self, error: CorruptRecord) -> None:
        """Note that a copy was read instead of what is damaged."""
        self._noted.setdefault((error.step, str(error.path)), f"{error}. The copy in another rank's journal was read instead")

    def _read_shard(self, rank: int, own: Record, body: dict[str, Any], decode: Decode) -> Record:
        step, digests = own.step, own.digests
        if rank not in self._folders:
            raise MissingShard(f"rank {rank}", rank, "the journal of that rank is missing", step=step)
        if rank not in self._peers:
            self._peers[rank] = PeerJournal(rank, self._folders[rank], self._read_log(rank))
        peer = self._peers[rank]
        record = peer.read_record(step)
        try:
            theirs = decode(record)
        except CorruptRecord as error:
            raise MissingShard(peer.folder, rank, str(error), step=step) from None
        if tuple(theirs.get("share", ())) != (rank, body["share"][1]):
            raise MissingShard(peer.folder, rank, "the record of that rank holds no shard of this step", step=step)
        if theirs["fingerprint"] == body["fingerprint"] and record.digests != digests:
            why = "the parameters of that rank after this step differ from those of the rank that reads its shard"
            raise MissingShard(peer.folder, rank, why, step=step)
        return record


class JoinedRecord:
    """A record with tensors that are joined from the gradient shards of all ranks. All else is that of the first record.

    It is no `Record`: a payload, a layout or a checksum of it would be those of one shard.

    Args:
        on_damage: called with each error after which a copy of the shard was read.

    Attributes:
        raw_bytes: bytes of the tensors before compression, in all shards.
    """

    def __init__(self, shards: Sequence[Record], on_damage: Callable[[CorruptRecord], None]) -> None:
        first = shards[0]
        self.shards, self._on_damage = shards, on_damage
        self.reader, self.kind, self.step, self.digests = first.reader, first.kind, first.step, first.digests
        self.raw_bytes = sum(one.raw_bytes for one in shards)

    def tensor_names(self) -> list[str]:
        """Return the names of the tensors in all shards."""
        return list(dict.fromkeys(name for part in self.shards for name in part.tensor_names()))

    def read(self, name: str, out: Bytes | None = None) -> AnyArray | None:
        """Return a tensor, joined from its ranges. For `out`, see `Record.read`."""
        located = [(slot, part) for part in self.shards for slot in part.layout.index.get(name, ())]
        slot, owner = located[0]
        spec = owner.layout.tensors[slot]
        if spec.piece is None or slot in owner.absent or slot in owner.sparse:
            return owner.read(name, out)
        itemsize, total = ITEMSIZE[spec.dtype], math.prod(spec.shape)
        nbytes = total * itemsize
        data = out[:nbytes] if out is not None and out.nbytes >= nbytes else np.empty(nbytes, np.uint8)
        at = 0
        for offset, group in itertools.groupby(sorted(located, key=_get_offset), key=_get_offset):
            copies = list(group)
            first, part = copies[0]
            piece = part.layout.tensors[first].piece
            if piece is None or any(_describe(copy) != _describe(located[0]) for copy in copies) or offset != at:
                why = f"the shards do not fit together at element {at}"
                raise CorruptRecord(part.reader.path, why, step=self.step, tensor=name)
            end = at + piece.length[0]
            self._read_range(copies, data[at * itemsize : end * itemsize])
            at = end
        if at != total:
            raise CorruptRecord(self.reader.path, f"no shard holds elements {at} to {total}", step=self.step, tensor=name)
        return Array(spec.dtype, spec.shape, data, spec.strides)

    def _read_range(self, copies: Sequence[_Located], out: Bytes) -> None:
        """Read a range of a tensor from the first copy that is sound."""
        for i, (slot, part) in enumerate(copies):
            try:
                part.read_slot(slot, out)
                return
            except CorruptRecord as error:
                if i + 1 == len(copies):
                    raise
                self._on_damage(error)


StepRecord = Record | JoinedRecord  # a record whose tensors are read by name


def _get_offset(located: _Located) -> int:
    slot, part = located
    piece = part.layout.tensors[slot].piece
    return piece.offset[0] if piece is not None else -1


def _describe(located: _Located) -> tuple[Any, ...]:
    slot, part = located
    spec = part.layout.tensors[slot]
    return spec.dtype, spec.shape, spec.strides
