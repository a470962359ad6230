"""Read records of one segment back: descriptions and pieces of payloads by checked reads.

A record may refer to others of its segment: to the one that defines its layout, and to those that have parts of its body in
full. They are named by their offset in the file, so records can be decoded in any order.
"""

from __future__ import annotations

import bisect
import fcntl
import math
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ..base.atomic_files import ReadFile
from ..base.errors import CannotRead, CorruptRecord
from ..base.types import ITEMSIZE, AnyArray, Array, Bytes, Piece, SparseArray, TensorSpec
from ..encoding import tree
from ..encoding.compression import Codec, decompress
from .body import WHOLE, Row, merged, unpack_parts
from .index import indexed_locations
from .layout import PIECE_BYTES_MAX, Layout, SparseForm, unpack_layout
from .record import HEAD, Description, EntryKind, Head, Location, checksum_of, unpack_description, unpack_head, unpack_scalars

_NO_LAYOUT = Layout(())
_CACHED_MAX = 4096  # decoded records that others refer to
_NAMES_MAX = 8  # of tensors that share a damaged piece, in a message
_WINDOW_BYTES = 1 << 18  # read ahead at a time
_AHEAD_MAX = 1 << 15  # larger reads are made one by one


class Entry:
    """A decoded record; tensors are read from the file when they are asked for.

    Attributes:
        reader: of the file.
        location: of the record in it.
        head: of the record.
        layout: the tensors that the record may hold.
        absent: indices of those that it does not hold.
        sparse: forms of those that are sparse, by index.
        digests: fingerprint of the state after the step.
        scalars: what the loop noted for its curves.
        body_key: equal for records of one file that share a body.
    """

    def __init__(self, reader: SegmentReader, location: Location, description: Description, layout: Layout) -> None:
        self.reader, self.location, self.head, self.layout = reader, location, location.head, layout
        self._description = description
        self.digests = description.digests
        self.body_key = description.body_at or location.offset
        self.absent = _bitmap(description.absent, len(layout)) if description.absent else frozenset[int]()
        self.sparse = _sparse_forms(description.sparse, layout) if description.sparse else {}
        self.scalars: dict[str, float] = dict(tree.decode(description.scalars)) if description.scalars else {}
        self._ends = _checked_pieces(self, description)

    @property
    def step(self) -> int:
        return self.head.step

    @property
    def kind(self) -> EntryKind:
        return self.head.kind

    @property
    def raw_bytes(self) -> int:
        """Bytes of the tensors before compression."""
        return self._description.raw_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of the payload in the file."""
        return self.head.payload_bytes

    # The body.

    def body(self, **make: Any) -> Any:
        """Return the body decoded; `make_array` and `make_extension` as for `tree.decode`.

        Raises:
            CorruptRecord: it is damaged, or refers to a record that is.
        """
        try:
            parts = self._merged_parts()
            if self.kind == EntryKind.BOUNDARY:
                return {name: self._decoded(part, make) for name, part in parts.items()}
            return self._decoded(parts[WHOLE], make) if WHOLE in parts else None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(self.reader.path, f"its description is damaged ({error})", step=self.step) from None

    def parts(self) -> dict[str, bytes]:
        """Return the trees of the body's parts by name.

        Raises:
            CorruptRecord: it is damaged, or refers to a record that is.
        """
        try:
            return {name: blob for name, (blob, _) in self._merged_parts().items()}
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(self.reader.path, f"its description is damaged ({error})", step=self.step) from None

    def arrays(self) -> list[Row]:
        """Return the places of the body's large arrays."""
        try:
            return [row for _, rows in self._merged_parts().values() for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(self.reader.path, f"its description is damaged ({error})", step=self.step) from None

    def _merged_parts(self) -> dict[str, tuple[bytes, Any]]:
        reader, own = self.reader, self._description
        if own.body_at:
            return {WHOLE: merged(reader.parts_at(own.body_at, self.step)[WHOLE], None)}
        found = {}
        for name, part in unpack_parts(own.body).items():
            full = reader.parts_at(part[0], self.step)[name] if part[0] else None
            found[name] = merged(part, full)
        return found

    def _decoded(self, part: tuple[bytes, Any], make: dict[str, Any]) -> Any:
        blob, rows = part

        def array(index: int, layout: AnyArray) -> AnyArray:
            if not index < len(rows):
                raise tree.MalformedTree(f"array {index} of {len(rows)}")
            assert isinstance(layout, Array)
            return self.reader.read_array(rows[index], layout, self.step)

        return tree.decode(blob, array, **make)

    # Tensors.

    def tensor_names(self) -> list[str]:
        """Return the names of the record's tensors, absent ones included, in order."""
        return list(dict.fromkeys(self.layout.names))

    def slots_of(self, name: str) -> list[int]:
        """Return the indices in the layout that make up a tensor: one, or several flat ranges.

        Raises:
            KeyError: the record has no such tensor.
        """
        return self.layout.index[name]

    def read(self, name: str, out: Bytes | None = None) -> AnyArray | None:
        """Return a tensor; None if it is absent. A single piece of a tensor comes as a piece.

        Args:
            name: the tensor.
            out: memory to read a dense tensor into, if it is large enough; the array is a view of it then.

        Raises:
            CorruptRecord: its bytes are damaged; the error names file, step and tensor.
            KeyError: the record has no such tensor.
        """
        slots = self.slots_of(name)
        return self.read_slot(slots[0], out) if len(slots) == 1 else self._joined(slots, out)

    def read_slot(self, index: int, out: Bytes | None = None) -> AnyArray | None:
        """Return the tensor at an index of the layout; see `read`."""
        if index in self.absent:
            return None
        spec, form = self.layout.tensors[index], self.sparse.get(index)
        if form is not None:
            return self._sparse(index, spec, form)
        size = self.layout.sizes[index]
        data = out[:size] if out is not None and out.nbytes >= size else np.empty(size, np.uint8)
        self.read_range(self._start(index), data, spec.name)
        return array_of(spec, data)

    def read_all(self, out: Bytes | None = None) -> Bytes:
        """Return the bytes of all present tensors in the order of the layout, by one contiguous read, checked.

        Args:
            out: memory to read into, if it is large enough; the result is a view of it then.

        Raises:
            CorruptRecord: bytes are damaged; the error names file, step and tensor.
        """
        size = self.raw_bytes
        data = out[:size] if out is not None and out.nbytes >= size else np.empty(size, np.uint8)
        if size:
            self.read_range(0, data, "")
        return data

    def starts(self) -> list[int]:
        """Return where each tensor of the layout starts in what `read_all` returns."""
        if not self.absent and not self.sparse:
            return self.layout.starts
        return _running(self.layout.sizes_in(self.absent, self.sparse))

    def describe_tensors(self) -> list[dict[str, Any]]:
        """Return what is known of each tensor without reading it."""
        found = []
        for i, spec in enumerate(self.layout.tensors):
            form = self.sparse.get(i)
            part = "none" if i in self.absent else "sparse" if form is not None else ""
            nbytes = 0 if i in self.absent else self.layout.sizes[i] if form is None else sum(self.layout.sparse_sizes(i, form))
            found.append({"name": spec.name, "part": part, "dtype": spec.dtype, "shape": spec.shape, "strides": spec.strides,
                          "piece": spec.piece, "nnz": None if form is None else form.nnz, "bytes": nbytes})  # fmt: skip
        return found

    def describe_pieces(self) -> list[dict[str, Any]]:
        """Return how each piece of the payload is stored."""
        found, start = [], 0
        for i, end in enumerate(self._ends):
            _, stored, codec = self._stored(i, start, end)
            name = Codec(codec).name.lower() if codec in Codec._value2member_map_ else str(codec)
            found.append({"bytes": end - start, "stored_bytes": stored, "codec": name, "checksum": f"{self._sum(i):016x}"})
            start = end
        return found

    def damaged_tensors(self) -> Iterator[tuple[str, str]]:
        """Read everything; yield (tensor, what is wrong with it) for each that is damaged.

        Small tensors share a piece, and are named together then.
        """
        sizes, starts = self.layout.sizes_in(self.absent, self.sparse), self.starts()
        start = 0
        for i, end in enumerate(self._ends):
            try:
                self._read_piece(i, start, end, np.empty(end - start, np.uint8), "")
            except CorruptRecord as damage:
                for name, at, size in zip(self.layout.names, starts, sizes, strict=True):
                    if size and at < end and at + size > start:
                        yield name, damage.why
            start = end

    def read_range(self, start: int, out: Bytes, name: str) -> None:
        """Fill `out` with the tensors' bytes from `start` on.

        Raises:
            CorruptRecord: a piece is damaged.
        """
        if out.nbytes == 0:
            return
        end = start + out.nbytes
        first = bisect.bisect_right(self._ends, start)
        last = bisect.bisect_left(self._ends, end)
        piece_start = self._ends[first - 1] if first else 0
        if piece_start == start and self._ends[last] == end and not self._description.codecs:
            self._read_raw(first, last + 1, out, start, name)
            return
        for i in range(first, last + 1):
            piece_end = self._ends[i]
            if start <= piece_start and piece_end <= end:
                self._read_piece(i, piece_start, piece_end, out[piece_start - start : piece_end - start], name)
            else:
                whole = np.empty(piece_end - piece_start, np.uint8)
                self._read_piece(i, piece_start, piece_end, whole, name)
                low, high = max(start, piece_start), min(end, piece_end)
                out[low - start : high - start] = whole[low - piece_start : high - piece_start]
            piece_start = piece_end

    def _read_raw(self, first: int, end: int, out: Bytes, start: int, name: str) -> None:
        """Fill `out` with whole pieces that are stored as they are, by one read."""
        if problem := self.reader.fill(out, self.location.payload_offset + start):
            raise self._corrupt(problem, start, start + out.nbytes, name)
        at = 0
        for i in range(first, end):
            to = self._ends[i] - start
            if checksum_of(out[at:to]) != self._sum(i):
                raise self._corrupt("the checksum of its bytes differs", start + at, start + to, name)
            at = to

    def _read_piece(self, i: int, start: int, end: int, out: Bytes, name: str) -> None:
        stored_at, stored, codec = self._stored(i, start, end)
        into = out if codec == Codec.RAW else np.empty(stored, np.uint8)
        if stored != into.nbytes:
            raise self._corrupt(f"{stored} bytes for {into.nbytes}", start, end, name)
        if problem := self.reader.fill(into, self.location.payload_offset + stored_at):
            raise self._corrupt(problem, start, end, name)
        if checksum_of(into) != self._sum(i):
            raise self._corrupt("the checksum of its bytes differs", start, end, name)
        if codec != Codec.RAW:
            try:
                decompress(codec, into, out)
            except ValueError as error:
                raise self._corrupt(str(error), start, end, name) from None

    def _sum(self, i: int) -> int:
        return int.from_bytes(self._description.sums[8 * i : 8 * i + 8], "little")

    def _stored(self, i: int, start: int, end: int) -> tuple[int, int, int]:
        """Return where a piece lies in the payload, its stored bytes, and its codec."""
        if not self._description.codecs:
            return start, end - start, Codec.RAW
        ends, codecs = self._stored_ends
        return (ends[i - 1] if i else 0), ends[i] - (ends[i - 1] if i else 0), codecs[i]

    @cached_property
    def _stored_ends(self) -> tuple[list[int], bytes]:
        count = len(self._ends)
        sizes = np.frombuffer(self._description.codecs, "<u4", count)
        return np.cumsum(sizes, dtype=np.int64).tolist(), self._description.codecs[4 * count :]

    def _start(self, index: int) -> int:
        return self.starts()[index]

    def _sparse(self, index: int, spec: TensorSpec, form: SparseForm) -> SparseArray:
        first, second = self.layout.sparse_sizes(index, form)
        data = np.empty(first + second, np.uint8)
        self.read_range(self._start(index), data, spec.name)
        indices = Array("int64", (form.dims, form.nnz), data[:first])
        values = Array(spec.dtype, (form.nnz, *spec.shape[form.dims :]), data[first:])
        return SparseArray(spec.shape, indices, values, form.is_coalesced)

    def _joined(self, slots: list[int], out: Bytes | None) -> Array:
        spec = self.layout.tensors[slots[0]]
        itemsize, total = ITEMSIZE[spec.dtype], math.prod(spec.shape) * ITEMSIZE[spec.dtype]
        data = out[:total] if out is not None and out.nbytes >= total else np.empty(total, np.uint8)
        for index in slots:
            piece = self.layout.tensors[index].piece
            assert piece is not None
            start = piece.offset[0] * itemsize
            self.read_slot(index, data[start : start + piece.length[0] * itemsize])
        return Array(spec.dtype, spec.shape, data, spec.strides)

    def _corrupt(self, why: str, start: int, end: int, name: str) -> CorruptRecord:
        if not name:
            sizes = self.layout.sizes_in(self.absent, self.sparse)
            spans = zip(self.layout.names, self.starts(), sizes, strict=True)
            name = _joined_names([name for name, at, size in spans if size and at < end and at + size > start])
        return CorruptRecord(self.reader.path, why, step=self.step, tensor=name or None)


class SegmentReader(ReadFile):
    """Reads one segment's file.

    Args:
        path: the file.
        locations: records of the segment whose descriptions the index has: a record that is damaged in the file is read
            from there.
        reads_ahead: whether small reads are served from a window that is read ahead. All records that are read must have
            been in the file before; neighbours are read together then.
        uses_index: whether a description that is damaged in the file is taken from the log's index; False for who checks the
            file itself.
    """

    def __init__(self, path: Path, locations: Iterable[Location] = (), *, reads_ahead: bool = False,
                 uses_index: bool = True) -> None:  # fmt: skip
        super().__init__(path)
        self.path = path
        self._reads_ahead = reads_ahead
        self._window: tuple[int, bytes] = 0, b""
        try:  # shared: a file that somebody reads is not recycled under him
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise CorruptRecord(path, "the file is being reused; what it held was pruned") from None
        except OSError:  # no locks are to be had: then nobody gets the one that recycling needs
            pass
        self._locations, self._uses_index = locations, uses_index
        self._by_offset: dict[int, Location] | None = None
        self._layouts: dict[int, Layout] = {}
        self._parts: dict[int, dict[str, tuple[int, Any, Any]]] = {}
        self._segment_id: int | None = None

    def entries(self, locations: Iterable[Location]) -> Iterator[Entry]:
        """Decode records in the order given."""
        for location in locations:
            yield self.decode(location)

    def decode(self, location: Location) -> Entry:
        """Decode the record at a location.

        Raises:
            CorruptRecord: its description is damaged, or that of the record that defines its layout.
        """
        self._segment_id = location.head.segment_id
        description = self._description(location)
        try:
            if description.layout:
                layout = self._layouts[location.offset] = unpack_layout(description.layout)
            elif description.layout_at:
                layout = self._layout_at(description.layout_at, location.head.step)
            else:
                layout = _NO_LAYOUT
            return Entry(self, location, description, layout)
        except (ValueError, TypeError, AttributeError) as error:
            raise self._unreadable(location.head, error) from None

    def scalars(self, location: Location) -> dict[str, float]:
        """Return what a record has noted for curves; nothing else of it is decoded.

        Raises:
            CorruptRecord: its description is damaged.
        """
        try:
            packed = unpack_scalars(self._checked_description(location))
            return dict(tree.decode(packed)) if packed else {}
        except (ValueError, TypeError) as error:
            raise self._unreadable(location.head, error) from None

    def fill(self, into: Bytes, offset: int) -> str:
        """Read bytes; see `ReadFile.fill`."""
        size = into.nbytes
        if self._reads_ahead and size <= _AHEAD_MAX:
            data, at = self._ahead(offset, size)
            if at + size <= len(data):
                into.data[:] = memoryview(data)[at : at + size]
                return ""
        return super().fill(into, offset)

    def _ahead(self, offset: int, size: int) -> tuple[bytes, int]:
        """Return a window and the place in it of bytes at an offset; the file may end, or fail, before all are in it."""
        base, data = self._window
        if not base <= offset <= base + len(data) - size:
            try:
                data = os.pread(self.fd, _WINDOW_BYTES, offset)
            except OSError:
                return b"", 0
            base = offset
            self._window = base, data
        return data, offset - base

    def raw(self, location: Location) -> tuple[bytes, bytes]:
        """Return a record's head and description as they are in the file.

        Raises:
            CorruptRecord: the description is damaged.
        """
        return os.pread(self.fd, HEAD.size, location.offset), self._read_description(location)

    def _description(self, location: Location) -> Description:
        try:
            return unpack_description(self._checked_description(location))
        except ValueError as error:
            raise self._unreadable(location.head, error) from None

    def _checked_description(self, location: Location) -> bytes:
        data = location.description
        if data is not None and checksum_of(data) == location.head.description_sum:
            return data
        try:
            return self._read_description(location)
        except CorruptRecord:
            indexed = self._indexed(location.offset)
            if indexed is None or indexed.description is None or indexed.head != location.head:
                raise
            if checksum_of(indexed.description) != location.head.description_sum:
                raise
            return indexed.description

    def _read_description(self, location: Location) -> bytes:
        head = location.head
        if self._reads_ahead and head.description_bytes <= _AHEAD_MAX:
            window, at = self._ahead(location.offset + HEAD.size + head.payload_bytes, head.description_bytes)
            data = window[at : at + head.description_bytes]
            if len(data) == head.description_bytes and xxhash.xxh3_64_intdigest(data) == head.description_sum:
                return data
        try:
            data = os.pread(self.fd, head.description_bytes, location.description_offset)
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError):
                CannotRead.raise_for(self.path, error)
            raise CorruptRecord(self.path, f"its description cannot be read ({error})", step=head.step) from None
        if len(data) != head.description_bytes or checksum_of(data) != head.description_sum:
            raise CorruptRecord(self.path, "the checksum of its description differs", step=head.step)
        return data

    def _unreadable(self, head: Head, error: Exception) -> CorruptRecord:
        return CorruptRecord(self.path, f"its description cannot be read ({error})", step=head.step)

    def _layout_at(self, offset: int, step: int) -> Layout:
        layout = self._layouts.get(offset)
        if layout is None:
            data = self._referred(offset, step).layout
            if not data:
                raise ValueError(f"the record at byte {offset} defines no layout")
            if len(self._layouts) >= _CACHED_MAX:
                self._layouts.clear()
            layout = self._layouts[offset] = unpack_layout(data)
        return layout

    def parts_at(self, offset: int, step: int) -> dict[str, tuple[int, Any, Any]]:
        """Return the parts of the record at an offset, which a record of `step` refers to.

        Raises:
            CorruptRecord: it is damaged.
            ValueError: it is no record with a body.
        """
        parts = self._parts.get(offset)
        if parts is None:
            parts = unpack_parts(self._referred(offset, step).body)
            if len(self._parts) >= _CACHED_MAX:
                self._parts.clear()
            self._parts[offset] = parts
        return parts

    def _referred(self, offset: int, step: int) -> Description:
        """Return the description of a record that another one refers to."""
        try:
            head = unpack_head(os.pread(self.fd, HEAD.size, offset))
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError):
                CannotRead.raise_for(self.path, error)
            head = None
        location = None if head is None or head.segment_id != self._segment_id else Location(head, offset)
        if location is not None:
            try:
                return self._description(location)
            except CorruptRecord:
                pass
        indexed = self._indexed(offset)
        if indexed is None:
            raise CorruptRecord(self.path, f"the record at byte {offset}, which it refers to, is damaged", step=step)
        return self._description(indexed)

    def _indexed(self, offset: int) -> Location | None:
        if self._by_offset is None:
            self._by_offset = {one.offset: one for one in self._locations if one.description is not None}
            if not self._by_offset and self._uses_index and self._segment_id is not None:
                indexed = indexed_locations(self.path.parent, self._segment_id)
                self._by_offset = {one.offset: one for one in indexed if one.description is not None}
        return self._by_offset.get(offset)

    def read_array(self, row: Row, layout: Array, step: int) -> Array:
        """Return a large array of a body, checked.

        Args:
            row: where it lies.
            layout: an array of its dtype, shape and strides without data.
            step: of the record, for errors.

        Raises:
            CorruptRecord: its bytes are damaged.
        """
        name, _, _, _, codec = row
        total = math.prod(layout.shape) * ITEMSIZE[layout.dtype]
        stored = self._stored_array(row, step)
        if codec == Codec.RAW:
            if stored.nbytes != total:
                raise CorruptRecord(self.path, f"{stored.nbytes} bytes for {total}", step=step, tensor=name)
            data = stored
        else:
            data = np.empty(total, np.uint8)
            try:
                decompress(codec, stored, data)
            except ValueError as error:
                raise CorruptRecord(self.path, str(error), step=step, tensor=name) from None
        return Array(layout.dtype, layout.shape, data, layout.strides, layout.is_tensor)

    def is_sound(self, row: Row) -> bool:
        """Return True if the bytes of a body's array are what was written."""
        try:
            self._stored_array(row, 0)
            return True
        except CorruptRecord:
            return False

    def _stored_array(self, row: Row, step: int) -> Bytes:
        name, offset, nbytes, checksum, _ = row
        size = os.fstat(self.fd).st_size
        if offset + nbytes > size:
            raise CorruptRecord(self.path, "the file is too short", step=step, tensor=name)
        data = np.empty(nbytes, np.uint8)
        if problem := self.fill(data, offset):
            raise CorruptRecord(self.path, problem, step=step, tensor=name)
        if checksum_of(data) != checksum:
            raise CorruptRecord(self.path, "the checksum of its bytes differs", step=step, tensor=name)
        return data


def array_of(spec: TensorSpec, data: Bytes) -> Array:
    """Return a tensor's array over its bytes."""
    piece = spec.piece
    array = Array(spec.dtype, spec.local_shape, data, None if _is_flat(piece) else spec.strides)
    if piece is not None:
        array.piece, array.whole = piece, spec.shape
    return array


def _is_flat(piece: Piece | None) -> bool:
    return piece is not None and piece.kind == "flat"


def _joined_names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more


def _running(sizes: Iterable[int]) -> list[int]:
    starts, at = [], 0
    for size in sizes:
        starts.append(at)
        at += size
    return starts


def _bitmap(data: bytes, count: int) -> frozenset[int]:
    if len(data) != (count + 7) // 8:
        raise ValueError(f"a bitmap of {len(data)} bytes for {count} tensors")
    return frozenset(i for i in range(count) if data[i // 8] >> (i % 8) & 1)


def _sparse_forms(data: bytes, layout: Layout) -> dict[int, SparseForm]:
    found: dict[int, SparseForm] = {}
    for index, form in tree.decode(data).items():
        dims, nnz, is_coalesced = form
        if not (type(index) is int and 0 <= index < len(layout) and type(dims) is int and type(nnz) is int):
            raise ValueError(f"a sparse tensor {index!r} of form {form!r}")
        if not 0 <= dims <= len(layout.tensors[index].shape) or not 0 <= nnz < 1 << 48:
            raise ValueError(f"a sparse tensor {index!r} of form {form!r}")
        found[index] = SparseForm(dims, nnz, bool(is_coalesced))
    return found


def _checked_pieces(entry: Entry, description: Description) -> list[int]:
    """Return where the pieces end; the lengths of all tables are compared before anything of their size is made."""
    layout, count = entry.layout, len(description.sums) // 8
    total = layout.nbytes if not entry.absent and not entry.sparse else sum(layout.sizes_in(entry.absent, entry.sparse))
    if total != description.raw_bytes or len(description.sums) % 8 or total > count * PIECE_BYTES_MAX:
        raise ValueError(f"{description.raw_bytes} bytes in {count} pieces, where the layout has {total}")
    ends = layout.pieces(entry.absent, entry.sparse)
    if len(ends) != count or len(description.codecs) not in (0, 5 * count):
        raise ValueError(f"{count} pieces where the layout has {len(ends)}")
    return ends
