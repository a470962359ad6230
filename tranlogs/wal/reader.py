"""Read entries of one segment back: heads from the scanner, payloads and frames by checked reads.

Descriptions (specs) and key frames are defined once a segment and used later, so entries are decoded in order. After a
checkpoint of its own the writer defines everything again; whoever starts at another place (behind a checkpoint that a monitor
made) gives the reader the entries before it, which are then asked for what they define.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ..codec import delta, tree
from ..codec.compression import Codec, decompress
from ..codec.entry import COALESCED, FRAME, PAGE_HEADER_BYTES, EntryKind, Head, Part, unpack_spec
from ..durable import ReadFile
from ..errors import CannotRead, CorruptRecord
from ..types import ITEMSIZE, AnyArray, Array, Bytes, Piece, SparseArray, TensorSpec
from .scan import Location

_NO_BYTES = np.empty(0, np.uint8)


@dataclass(slots=True)
class Frame:
    """One tensor of an entry (or one part of it) and where its bytes lie."""

    spec: TensorSpec
    part: Part
    codec: int
    flags: int
    nnz: int
    offset: int  # in the file
    stored: int
    checksum: int

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(slots=True)
class Entry:
    """A decoded entry; tensors are read from the file when they are asked for."""

    reader: SegmentReader
    head: Head
    frames: list[Frame]
    blob: bytes  # the body, a tree
    named: int  # the first `named` frames are tensors by name, the rest belong to the body
    scalars: dict[str, float]
    _index: dict[str, list[Frame]] | None = field(default=None)

    @property
    def step(self) -> int:
        return self.head.step

    @property
    def kind(self) -> EntryKind:
        return self.head.kind

    def body(self, **make: Any) -> Any:
        """The body decoded; `make_array` and `make_extension` as for `tree.decode`."""
        try:
            return tree.decode(self.blob, self._body_array, **make)
        except tree.MalformedTree as error:
            raise CorruptRecord(self.reader.path, f"its description is damaged ({error})", step=self.step) from None

    def _body_array(self, index: int, layout: AnyArray) -> AnyArray:
        if not self.named <= index < len(self.frames):
            raise tree.MalformedTree(f"array {index} of {len(self.frames)}")
        return self.reader.read_dense(self.frames[index], self.step, is_tensor=getattr(layout, "is_tensor", True))

    def tensor_names(self) -> list[str]:
        """Names of the entry's tensors, in order."""
        return list(self._by_name())

    def frames_of(self, name: str) -> list[Frame]:
        """The frames that make up a tensor: one, several flat ranges, or indices and values."""
        return self._by_name()[name]

    def read(self, name: str, out: Bytes | None = None) -> AnyArray | None:
        """A tensor; None where the entry says that there was none ("no gradient"). A single piece comes as a piece.

        Args:
            name: the tensor.
            out: memory to read a dense tensor into, if it is large enough; the array is a view of it then.

        Raises:
            CorruptRecord: its bytes are damaged; the error names file, step and tensor.
            KeyError: the entry has no such tensor.
        """
        frames = self._by_name()[name]
        first = frames[0]
        if first.part == Part.NONE:
            return None
        if first.part == Part.DENSE:
            return self.reader.read_dense(first, self.step, out) if len(frames) == 1 else self._joined(frames, out)
        indices, values = frames
        shape, dims = first.spec.shape, first.flags & 0xFF
        return SparseArray(
            shape,
            self.reader.read_dense(indices, self.step, dtype="int64", shape=(dims, first.nnz)),
            self.reader.read_dense(values, self.step, shape=(first.nnz, *shape[dims:])),
            bool(first.flags & COALESCED),
        )

    def pieces(self, name: str) -> list[Array]:
        """The parts of a dense tensor that this journal holds, each with its place in the whole."""
        return [self.reader.read_dense(frame, self.step) for frame in self._by_name()[name]]

    def _joined(self, frames: list[Frame], out: Bytes | None) -> Array:
        spec = frames[0].spec
        itemsize, total = ITEMSIZE[spec.dtype], math.prod(spec.shape) * ITEMSIZE[spec.dtype]
        data = out[:total] if out is not None and out.nbytes >= total else np.empty(total, np.uint8)
        for frame in frames:
            piece = frame.spec.piece
            assert piece is not None
            start = piece.offset[0] * itemsize
            self.reader.read_dense(frame, self.step, data[start : start + piece.length[0] * itemsize])
        return Array(spec.dtype, spec.shape, data, spec.strides)

    def _by_name(self) -> dict[str, list[Frame]]:
        if self._index is None:
            self._index = {}
            for frame in self.frames[: self.named]:
                self._index.setdefault(frame.name, []).append(frame)
        return self._index


class SegmentReader(ReadFile):
    """Reads one segment's file.

    Args:
        path: the file.
        earlier: where the entries lie that come before the first one to be decoded; they are looked at only if what they
            define is needed.
    """

    def __init__(self, path: Path, earlier: Sequence[Location] = ()) -> None:
        super().__init__(path)
        self.path = path
        self._earlier = earlier
        try:  # shared: a file that somebody reads is not recycled under him
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise CorruptRecord(path, "the file is being reused; what it held was pruned") from None
        except OSError:  # no locks are to be had: then nobody gets the one that recycling needs
            pass
        self._specs: dict[int, TensorSpec] = {}
        self._keys: dict[int, bytes] = {}

    def entries(self, locations: list[Location]) -> Iterator[Entry]:
        """Decode entries in the order given."""
        for location in locations:
            yield self.decode(location)

    def decode(self, location: Location) -> Entry:
        """Decode the entry at a location.

        Raises:
            CorruptRecord: its payload is damaged, or uses what an entry that was not decoded before had defined.
        """
        try:
            return self._decode(location)
        except CorruptRecord:
            if not self._earlier:
                raise
        self._define_earlier()
        return self._decode(location)

    def _define_earlier(self) -> None:
        earlier, self._earlier = self._earlier, ()
        for location in earlier:
            with suppress(CorruptRecord):  # then what needs it cannot be decoded either, and says so
                self._decode(location)

    def _decode(self, location: Location) -> Entry:
        head = location.head
        try:
            payload = os.pread(self.fd, head.length, location.offset)
        except OSError as error:
            CannotRead.demand(self.path, error)
            raise CorruptRecord(self.path, f"its description cannot be read ({error.strerror})", step=head.step) from None
        if len(payload) != head.length or xxhash.xxh3_64_intdigest(payload) != head.payload_sum:
            raise CorruptRecord(self.path, "the checksum of its description differs", step=head.step)
        try:
            content = tree.decode(payload)
            for packed in content["specs"]:
                number, spec = unpack_spec(packed)
                self._specs[number] = spec
            frames = [self._frame(row, location.page_bytes) for row in FRAME.iter_unpack(content["frames"])]
            blob, key = content["body"], content.get("key")
            if key is not None:
                blob = delta.restored(blob, self._keys[key])
            elif head.kind == EntryKind.BOUNDARY:
                self._keys[head.sequence] = blob
            return Entry(self, head, frames, blob, int(content["named"]), dict(content.get("scalars", {})))
        except (tree.MalformedTree, KeyError, ValueError, TypeError, struct.error) as error:
            raise CorruptRecord(self.path, f"its description cannot be read ({error})", step=head.step) from None

    def _frame(self, row: tuple[int, ...], page_bytes: int) -> Frame:
        spec, part, codec, flags, nnz, page, offset, stored, checksum = row
        at = page * page_bytes + PAGE_HEADER_BYTES + offset
        return Frame(self._specs[spec], Part(part), codec, flags, nnz, at, stored, checksum)

    def read_dense(self, frame: Frame, step: int, out: Bytes | None = None, *, dtype: str | None = None,
                   shape: tuple[int, ...] | None = None, is_tensor: bool = True) -> Array:  # fmt: skip
        """The bytes of one frame as an array, checked."""
        spec = frame.spec
        dtype, sparse = dtype or spec.dtype, shape is not None
        shape = spec.local_shape if shape is None else shape
        total = math.prod(shape) * ITEMSIZE[dtype]
        data = out[:total] if out is not None and out.nbytes >= total else np.empty(total, np.uint8)
        self._unpack(frame, step, data)
        array = Array(dtype, shape, data, None if sparse or _is_flat(spec.piece) else spec.strides, is_tensor)
        if spec.piece is not None:
            array.piece, array.whole = spec.piece, spec.shape
        return array

    def is_sound(self, frame: Frame) -> bool:
        """Whether a frame's bytes are what was written."""
        try:
            self._stored(frame, 0, np.empty(frame.stored, np.uint8))
            return True
        except CorruptRecord:
            return False

    def _unpack(self, frame: Frame, step: int, data: Bytes) -> None:
        if frame.codec == Codec.RAW:
            if frame.stored != data.nbytes:
                raise CorruptRecord(self.path, f"{frame.stored} bytes for {data.nbytes}", step=step, tensor=frame.name)
            self._stored(frame, step, data)
            return
        stored = self._stored(frame, step, np.empty(frame.stored, np.uint8)) if frame.stored else _NO_BYTES
        try:
            decompress(frame.codec, stored, data)
        except ValueError as error:
            raise CorruptRecord(self.path, str(error), step=step, tensor=frame.name) from None

    def _stored(self, frame: Frame, step: int, into: Bytes) -> Bytes:
        if problem := self.fill(into, frame.offset):
            raise CorruptRecord(self.path, problem, step=step, tensor=frame.name)
        if xxhash.xxh3_64_intdigest(into.data) != frame.checksum:
            raise CorruptRecord(self.path, "the checksum of its bytes differs", step=step, tensor=frame.name)
        return into


def _is_flat(piece: Piece | None) -> bool:
    return piece is not None and piece.kind == "flat"
