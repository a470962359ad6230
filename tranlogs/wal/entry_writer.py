"""Write one entry: tensors as they come, the head that describes them last, all in one LMDB transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from ..codec import delta, tree
from ..codec.compression import compress
from ..codec.entry import COALESCED, FRAME, HEAD, HEAD_BYTES_MIN, EntryKind, Part, digest, pack_head, pack_spec
from ..config import GROUP_BYTES_MAX, TINY_BYTES_MAX, VALUE_BYTES_MAX
from ..errors import LogUnavailable
from ..failpoints import hit
from ..types import ITEMSIZE, AnyArray, Array, Bytes, Piece, SparseArray, TensorSpec
from .segment import LMDB_ERRORS, Segment, Transaction

if TYPE_CHECKING:
    from .log import WriteAheadLog

Tensor = tuple[str, AnyArray | None]  # name, content; None = "no gradient"
Scalars = dict[str, float]  # what the loop noted for its curves


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the log: after entry `sequence`, at `step`, whose digest is `chain`, on `timeline`."""

    sequence: int = 0
    step: int = 0
    chain: int = 0
    timeline: int = 1


@dataclass(slots=True)
class Row:
    """One frame as it will stand in the entry's payload; `packed` gives its bytes."""

    spec: int
    part: int
    flags: int
    nnz: int
    codec: int = 0
    page: int = 0
    offset: int = 0
    stored: int = 0
    checksum: int = 0

    def packed(self) -> bytes:
        return FRAME.pack(self.spec, self.part, self.codec, self.flags, self.nnz, self.page, self.offset, self.stored,
                          self.checksum)  # fmt: skip


class Definitions:
    """Which tensor descriptions, key frames and unchanged arrays the open segment already holds."""

    def __init__(self) -> None:
        self.numbers: dict[TensorSpec, int] = {}
        self.next_number = 0
        self.key: tuple[int, bytes] | None = None
        self.placed: dict[str, Row] = {}

    def forget(self) -> None:
        """Define everything again: what follows must not depend on what was written before."""
        self.numbers, self.key, self.placed = {}, None, {}


class EntryWriter:
    """One entry being written: add tensors, then commit with a body; or abort. All in one thread."""

    def __init__(self, log: WriteAheadLog, segment: Segment, sequence: int) -> None:
        self._log, self._segment, self._sequence = log, segment, sequence
        self._txn: Transaction | None = segment.begin(sequence)
        self._frames: list[Row] = []
        self._new: list[tuple[TensorSpec, int]] = []
        self._placed: dict[str, Row] = {}
        self._group: list[Row] = []
        self._group_bytes = 0
        self.nbytes = 0

    def add(self, name: str, content: AnyArray | None) -> None:
        """Append a tensor; a copy is made at once, so its memory may change afterwards."""
        if content is None:
            self._frame(TensorSpec(name, "uint8", (0,)), Part.NONE, None)
        elif isinstance(content, SparseArray):
            flags = content.indices.shape[0] | (COALESCED if content.is_coalesced else 0)
            nnz = content.values.shape[0]
            spec = TensorSpec(name, content.values.dtype, content.shape)
            self._frame(spec, Part.INDICES, content.indices, flags=flags, nnz=nnz)
            self._frame(spec, Part.VALUES, content.values, flags=flags, nnz=nnz)
        elif content.nbytes > VALUE_BYTES_MAX and content.piece is None:
            self._split(name, content)
        else:
            whole = content.shape if content.whole is None else content.whole
            self._frame(TensorSpec(name, content.dtype, whole, content.strides, content.piece), Part.DENSE, content)

    def wait(self) -> None:
        """The tensors were copied when they were added."""

    def _split(self, name: str, content: Array) -> None:
        itemsize = ITEMSIZE[content.dtype]
        most, total = VALUE_BYTES_MAX // itemsize, content.nbytes // itemsize
        for first in range(0, total, most):
            count = min(most, total - first)
            part = Array(content.dtype, (count,), content.data[first * itemsize : (first + count) * itemsize])
            piece = Piece("flat", (first,), (count,))
            self._frame(TensorSpec(name, content.dtype, content.shape, content.strides, piece), Part.DENSE, part)

    def _frame(self, spec: TensorSpec, part: Part, content: Array | None, *, flags: int = 0, nnz: int = 0,
               reuse: bool = False) -> None:  # fmt: skip
        row = Row(self._number(spec), part, flags, nnz)
        self._frames.append(row)
        if content is None:
            return
        codec, stored = compress(content.data, content.dtype)
        row.codec, row.stored, row.checksum = codec, stored.nbytes, xxhash.xxh3_64_intdigest(stored.data)
        if reuse and self._reused(spec.name, row):
            return
        self.nbytes += stored.nbytes
        if stored.nbytes < TINY_BYTES_MAX:
            self._put_grouped(row, stored)
        else:
            row.page = self._put(stored)
        if reuse:
            self._placed[spec.name] = row

    def _reused(self, name: str, row: Row) -> bool:
        """Whether the same bytes stand in this segment already; the frame then points there."""
        known = self._log.definitions.placed.get(name)
        if known is None or (known.checksum, known.stored, known.codec) != (row.checksum, row.stored, row.codec):
            return False
        row.page, row.offset = known.page, known.offset
        return True

    def _number(self, spec: TensorSpec) -> int:
        definitions = self._log.definitions
        number = definitions.numbers.get(spec)
        if number is None:
            number = definitions.numbers[spec] = definitions.next_number
            definitions.next_number += 1
            self._new.append((spec, number))
        return number

    def _put_grouped(self, row: Row, stored: Bytes) -> None:
        size = stored.nbytes
        if self._group_bytes + size > GROUP_BYTES_MAX:
            self._flush_group()
        at = self._group_bytes
        self._log.group_buffer[at : at + size] = stored
        row.offset = at
        self._group.append(row)
        self._group_bytes = at + (size + 15) // 16 * 16

    def _flush_group(self) -> None:
        if self._group:
            size = max(self._group_bytes, HEAD_BYTES_MIN)
            page = self._put(self._log.group_buffer[:size])
            for row in self._group:
                row.page = page
            self._group, self._group_bytes = [], 0

    def _put(self, value: Bytes) -> int:
        assert self._txn is not None
        try:
            hit("wal.put")
            return self._txn.put(value)
        except LMDB_ERRORS as error:
            raise LogUnavailable(f"{self._segment.path}: {error}") from error

    def commit(self, kind: EntryKind, step: int, body: Any, *, adapt: tree.Adapt | None = None,
               scalars: Scalars | None = None) -> Position:  # fmt: skip
        """Write the head and commit; returns the position after this entry."""
        named = len(self._frames)
        far: list[tuple[str, AnyArray]] = [("", _EMPTY)] * named
        blob = tree.encode(body, path="", adapt=adapt, out_of_line=far)
        return self.commit_encoded(kind, step, blob, far[named:], scalars)

    def commit_encoded(self, kind: EntryKind, step: int, blob: bytes, far: list[tuple[str, AnyArray]],
                       scalars: Scalars | None = None) -> Position:  # fmt: skip
        """`commit` for a body that is encoded already; `far` are its arrays out of line."""
        log, named = self._log, len(self._frames)
        try:
            for name, array in far:
                assert isinstance(array, Array)
                self._frame(TensorSpec(name, array.dtype, array.shape, array.strides), Part.DENSE, array,
                            reuse=kind == EntryKind.BOUNDARY)  # fmt: skip
            self._flush_group()
            payload = self._payload(kind, blob, named, scalars)
            chain = log.position.chain
            head = pack_head(self._segment.segment_id, self._sequence, step, kind, payload, chain)
            self._put(np.frombuffer((head + payload).ljust(HEAD_BYTES_MIN, b"\0"), np.uint8))
            assert self._txn is not None
            self._txn.commit()  # commit point
            self._txn = None
        except LMDB_ERRORS as error:
            self.abort()
            raise LogUnavailable(f"{self._segment.path}: {error}") from error
        except BaseException:
            self.abort()
            raise
        log.definitions.placed.update(self._placed)
        self.nbytes += len(payload) + HEAD.size
        after = Position(self._sequence, step, digest(head), log.position.timeline)
        return log._entry_written(self, kind, after)

    def _payload(self, kind: EntryKind, blob: bytes, named: int, scalars: Scalars | None) -> bytes:
        frames = b"".join(row.packed() for row in self._frames)
        specs = [pack_spec(number, spec) for spec, number in self._new]
        content: dict[str, Any] = {"specs": specs, "frames": frames, "named": named, "body": blob}
        if scalars:
            content["scalars"] = scalars
        definitions = self._log.definitions
        if kind == EntryKind.BOUNDARY:
            packed = None if definitions.key is None else delta.difference(blob, definitions.key[1])
            if packed is not None and definitions.key is not None:
                content["body"], content["key"] = packed, definitions.key[0]
            else:
                definitions.key = (self._sequence, blob)
        return tree.encode(content)

    @property
    def is_open(self) -> bool:
        """False once it is committed or aborted; the log aborts it when another entry begins."""
        return self._txn is not None

    def abort(self) -> None:
        """Forget the entry; the definitions it made are forgotten with it."""
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
            self._log.definitions.forget()
            self._log._entry_aborted(self)


_EMPTY = Array("uint8", (0,), np.empty(0, np.uint8))


def encode_body(body: Any, tensors: list[Tensor], adapt: tree.Adapt | None, far: list[tuple[str, AnyArray]]) -> bytes:
    """Encode an entry's body; its large arrays are appended to `far` and numbered after the frames of `tensors`."""
    numbered: list[tuple[str, AnyArray]] = [("", _EMPTY)] * sum(frame_count(content) for _, content in tensors)
    named = len(numbered)
    blob = tree.encode(body, path="", adapt=adapt, out_of_line=numbered)
    far += numbered[named:]
    return blob


def frame_count(content: AnyArray | None) -> int:
    """How many frames `EntryWriter.add` makes of a tensor."""
    if isinstance(content, SparseArray):
        return 2
    if content is None or content.nbytes <= VALUE_BYTES_MAX:
        return 1
    itemsize = ITEMSIZE[content.dtype]
    most = VALUE_BYTES_MAX // itemsize
    return -(-(content.nbytes // itemsize) // most)
