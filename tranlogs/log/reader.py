"""The reader of one segment's records: tensors, body, fingerprint and scalars of each. It compares all checksums."""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from ..base import lazy_numpy as np
from ..base.errors import CorruptRecord
from ..base.types import AnyArray, Array, Bytes, SparseArray, TensorSpec
from ..encoding import tree
from ..encoding.compression import Codec, decompress
from .layout import PIECE_BYTES_MAX, Layout, SparseForm, array_of
from .record_body import BASE, WHOLE, PackedBody, Row, merge_bodies, resolve, unpack_body
from .record_file import RecordFile
from .record_format import Description, Location, RecordKind, checksum_of, offset_of

_NAMES_MAX = 8  # names in a message about a damaged piece that several tensors share


class SegmentReader(RecordFile):
    """Reads records from one segment's file."""

    def records(self, locations: Iterable[Location]) -> Iterator[Record]:
        """Decode records in the order given."""
        for location in locations:
            yield self.decode(location)

    def decode(self, location: Location) -> Record:
        """Decode the record at a location.

        Raises:
            CorruptRecord: the description is damaged, or the description of the record that defines the layout is.
        """
        description = self.description(location)
        try:
            return Record(self, location, description, self.layout_of(location, description))
        except (ValueError, TypeError, AttributeError) as error:
            raise self.make_unreadable(location, error) from None


class Record:
    """A record of the log. Its tensors are read from the file on demand, piece by piece.

    A body may refer to other records of the same file that hold parts of it in full. What is damaged, here or there, raises
    CorruptRecord, which names file, step and tensor.

    Attributes:
        absent: indices of the tensors that the record does not hold.
        sparse: form of each sparse tensor, by index.
        raw_bytes: bytes of the tensors before compression.
        digests: fingerprint of the state after the step.
        scalars: numbers that the loop logged for its curves.
        body_key: a number that is equal for records of one file that share the body of a step.
    """

    def __init__(self, reader: RecordFile, location: Location, description: Description, layout: Layout) -> None:
        self.reader, self.location, self.layout = reader, location, layout
        self.head, self.step = location.head, location.head.step
        self.absent = _bitmap(description.absent, len(layout)) if description.absent else frozenset[int]()
        self.sparse = _sparse_forms(description.sparse, layout) if description.sparse else {}
        self.raw_bytes = description.raw_bytes
        self.digests = description.digests
        self.body_key = offset_of(description.body_at) or location.offset
        self.scalars: dict[str, float] = dict(tree.decode(description.scalars)) if description.scalars else {}
        self._body_at, self._body = description.body_at, description.body
        self._sums, self._codecs = description.sums, description.codecs
        self._ends = self._checked_ends()

    def _checked_ends(self) -> list[int]:
        """Return the end of each piece. Compare the lengths of all tables before memory is allocated for them."""
        layout, count = self.layout, len(self._sums) // 8
        total = layout.nbytes if not self.absent and not self.sparse else sum(layout.sizes_in(self.absent, self.sparse))
        if total != self.raw_bytes or len(self._sums) % 8 or total > count * PIECE_BYTES_MAX:
            raise ValueError(f"the layout has {total} bytes, but the record {self.raw_bytes} bytes in {count} pieces")
        ends = layout.pieces(self.absent, self.sparse)
        if len(ends) != count or len(self._codecs) not in (0, 5 * count):
            raise ValueError(f"the layout has {len(ends)} pieces, but the record {count}")
        return ends

    @property
    def kind(self) -> RecordKind:
        """Kind of the record."""
        return self.head.kind

    @property
    def stored_bytes(self) -> int:
        """Size of the payload in the file."""
        return self.head.payload_bytes

    # The body.

    def body(self, **make: Any) -> Any:
        """Decode the body of a step, an after-image or a segment's first record; None if the record is only a boundary.

        The arguments `make_array` and `make_extension` are those of `tree.decode`.
        """
        return self.part(WHOLE, **make)

    def boundary(self, **make: Any) -> dict[str, Any]:
        """Decode the parts of a boundary. Arguments are those of `body`."""
        assert self.kind.is_boundary, f"a record of kind {self.kind.name} is no boundary"
        with self._naming_damage():
            packed = self._packed_body()
            names = [name for name in packed if name != WHOLE and "/" not in name]
            return {name: self._decode(name, packed, make) for name in names}

    def part(self, name: str, **make: Any) -> Any:
        """Decode one part of the body; None if the body has no such part. Arguments are those of `body`."""
        with self._naming_damage():
            packed = self._packed_body()
            return self._decode(name, packed, make) if name in packed else None

    def parts(self) -> dict[str, bytes]:
        """Return the encoded trees of the body's parts, by name."""
        with self._naming_damage():
            return {name: part for name, part in self._contents() if type(part) is bytes}

    def encoded(self) -> dict[str, tuple[bytes, list[Array]]]:
        """Return each part of the body as it was encoded: its tree, and its large arrays."""
        with self._naming_damage():
            contents = dict(self._contents())
            blobs = [(name, part) for name, part in contents.items() if type(part) is bytes]
            return {name: (blob, self._read_arrays(name, blob, contents)) for name, blob in blobs}

    def _read_arrays(self, name: str, blob: bytes, contents: Mapping[str, Any]) -> list[Array]:
        found: dict[int, Array] = {}

        def array(index: int, layout: AnyArray) -> AnyArray:
            found[index] = self._read_array(name, index, layout, contents)
            return found[index]

        tree.decode(blob, array)
        return [found[index] for index in sorted(found)]

    def _read_array(self, name: str, index: int, layout: AnyArray, contents: Mapping[str, Any]) -> Array:
        key = f"{name}/#{index}"
        row = resolve(key, contents.get(key), self._body_of)
        if type(row) is not list:
            raise tree.MalformedTree(f"the part {key!r} is no array")
        assert isinstance(layout, Array), "an array out of line is dense"
        return self.reader.read_array(name, row, layout, self.step)

    def arrays(self) -> list[tuple[str, Row]]:
        """Return the locations of the body's large arrays, each with the name of its part."""
        with self._naming_damage():
            return [(name.rpartition("/#")[0], part) for name, part in self._contents() if type(part) is list]

    def find_damage(self) -> Iterator[CorruptRecord]:
        """Read the whole record and compare all its checksums. Yield one error for each tensor or array that is damaged.

        If the body cannot be read, that is the only error.
        """
        try:
            with self._naming_damage():
                for blob in self.parts().values():
                    tree.decode(blob, lambda _, layout: layout, make_array=lambda _: None)
            arrays = self.arrays()
        except CorruptRecord as damage:
            yield damage
            return
        for name, why in self.damaged_tensors():
            yield CorruptRecord(self.reader.path, why, step=self.step, tensor=name)
        for name, row in arrays:
            if not self.reader.is_sound(row):
                yield CorruptRecord(self.reader.path, "the checksum of its bytes differs", step=self.step, tensor=name)

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Raise CorruptRecord, with the file and the step, for what the decoding of a damaged body raises."""
        try:
            yield
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(self.reader.path, f"its description is damaged ({error})", step=self.step) from None

    def _packed_body(self) -> PackedBody:
        """Return what this record, and those that it refers to for the rest, have of the parts."""
        body = unpack_body(self._body)
        if BASE in body:
            body = merge_bodies(body, self._body_of(body[BASE]))
        if self._body_at:
            body[WHOLE] = self._body_of(self._body_at)[WHOLE]
        return body

    def _body_of(self, place: int) -> PackedBody:
        return self.reader.body_at(place, self.step)

    def _contents(self) -> Iterator[tuple[str, bytes | Row]]:
        """Yield the tree of each part and the row of each array."""
        for name, part in self._packed_body().items():
            yield name, resolve(name, part, self._body_of)

    def _decode(self, name: str, packed: PackedBody, make: dict[str, Any]) -> Any:
        """Take a part out of a body, and decode it with the parts that it refers to: each is referred to once."""
        if name not in packed:
            raise tree.MalformedTree(f"the part {name!r} is missing, or is referred to twice")
        blob = resolve(name, packed.pop(name), self._body_of)
        if type(blob) is not bytes:
            raise tree.MalformedTree(f"the part {name!r} is an array")
        return tree.decode(
            blob,
            lambda index, layout: self._read_array(name, index, layout, packed),
            parts=lambda index: self._decode(f"{name}/{index}", packed, make),
            **make,
        )

    # Tensors.

    def tensor_names(self) -> list[str]:
        """Return the names of the record's tensors in order, including absent ones."""
        return list(dict.fromkeys(self.layout.names))

    def read(self, name: str, out: Bytes | None = None) -> AnyArray | None:
        """Read a tensor; return None if it is absent. If the record holds pieces of it, return the first one.

        Args:
            out: memory for a dense tensor. If it is large enough, the returned array is a view of it.

        Raises:
            CorruptRecord: the bytes are damaged; the error names file, step and tensor.
            KeyError: the record has no such tensor.
        """
        return self.read_slot(self.layout.index[name][0], out)

    def read_slot(self, index: int, out: Bytes | None = None) -> AnyArray | None:
        """Read the tensor at an index of the layout; return None if it is absent. `out` is as for `read`."""
        if index in self.absent:
            return None
        spec, form = self.layout.tensors[index], self.sparse.get(index)
        if form is not None:
            return self._read_sparse(index, spec, form)
        size = self.layout.sizes[index]
        data = out[:size] if out is not None and out.nbytes >= size else np.empty(size, np.uint8)
        self.read_range(self.starts()[index], data, spec.name)
        return array_of(spec, data)

    def _read_sparse(self, index: int, spec: TensorSpec, form: SparseForm) -> SparseArray:
        first, second = self.layout.sparse_sizes(index, form)
        data = np.empty(first + second, np.uint8)
        self.read_range(self.starts()[index], data, spec.name)
        indices = Array("int64", (form.dims, form.nnz), data[:first])
        values = Array(spec.dtype, (form.nnz, *spec.shape[form.dims :]), data[first:])
        return SparseArray(spec.shape, indices, values, form.is_coalesced)

    def read_all(self, out: Bytes | None = None) -> Bytes:
        """Read the bytes of all present tensors, in the order of the layout, by one contiguous read; into `out` if they fit."""
        size = self.raw_bytes
        data = out[:size] if out is not None and out.nbytes >= size else np.empty(size, np.uint8)
        if size:
            self.read_range(0, data, "")
        return data

    def starts(self) -> list[int]:
        """Return the offset of each tensor of the layout in the result of `read_all`."""
        if not self.absent and not self.sparse:
            return self.layout.starts
        return list(itertools.accumulate(self.layout.sizes_in(self.absent, self.sparse), initial=0))[:-1]

    # Descriptions and checks.

    def describe_tensors(self) -> list[dict[str, Any]]:
        """Describe each tensor without reading it."""
        found = []
        for i, spec in enumerate(self.layout.tensors):
            form = self.sparse.get(i)
            part = "none" if i in self.absent else "sparse" if form is not None else ""
            nbytes = 0 if i in self.absent else self.layout.sizes[i] if form is None else sum(self.layout.sparse_sizes(i, form))
            found.append(
                {
                    "name": spec.name,
                    "part": part,
                    "dtype": spec.dtype,
                    "shape": spec.shape,
                    "strides": spec.strides,
                    "piece": spec.piece,
                    "nnz": None if form is None else form.nnz,
                    "bytes": nbytes,
                }
            )
        return found

    def describe_pieces(self) -> list[dict[str, Any]]:
        """Describe the stored form of each piece of the payload."""
        found, start = [], 0
        for i, end in enumerate(self._ends):
            _, stored, codec = self._stored(i, start, end)
            name = Codec(codec).name.lower() if codec in Codec._value2member_map_ else str(codec)
            found.append({"bytes": end - start, "stored_bytes": stored, "codec": name, "checksum": f"{self._sum(i):016x}"})
            start = end
        return found

    def damaged_tensors(self) -> Iterator[tuple[str, str]]:
        """Read the whole payload; yield the name and the problem of each damaged tensor.

        If a damaged piece is shared by several small tensors, all of them are yielded.
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

    # Pieces.

    def read_range(self, start: int, out: Bytes, name: str) -> None:
        """Fill `out` with bytes of the tensors, starting at `start`.

        Args:
            start: offset in the bytes before compression.
            name: name of the tensor, for error messages; "" if there are several.
        """
        if out.nbytes == 0:
            return
        end = start + out.nbytes
        first = bisect.bisect_right(self._ends, start)
        last = bisect.bisect_left(self._ends, end)
        piece_start = self._ends[first - 1] if first else 0
        if piece_start == start and self._ends[last] == end and not self._codecs:
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
        """Fill `out` with whole uncompressed pieces by one read."""
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
            raise self._corrupt(f"expected {into.nbytes} bytes, found {stored}", start, end, name)
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
        return int.from_bytes(self._sums[8 * i : 8 * i + 8], "little")

    def _stored(self, i: int, start: int, end: int) -> tuple[int, int, int]:
        """Return the offset of a piece in the payload, its stored bytes, and its codec."""
        if not self._codecs:
            return start, end - start, Codec.RAW
        ends, codecs = self._stored_ends
        return (ends[i - 1] if i else 0), ends[i] - (ends[i - 1] if i else 0), codecs[i]

    @cached_property
    def _stored_ends(self) -> tuple[list[int], bytes]:
        count = len(self._ends)
        sizes = struct.unpack_from(f"<{count}I", self._codecs)
        return list(itertools.accumulate(sizes)), self._codecs[4 * count :]

    def _corrupt(self, why: str, start: int, end: int, name: str) -> CorruptRecord:
        if not name:
            sizes = self.layout.sizes_in(self.absent, self.sparse)
            spans = zip(self.layout.names, self.starts(), sizes, strict=True)
            names = [name for name, at, size in spans if size and at < end and at + size > start]
            name = ", ".join(names[:_NAMES_MAX]) + (f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else "")
        return CorruptRecord(self.reader.path, why, step=self.step, tensor=name or None)


def _bitmap(data: bytes, count: int) -> frozenset[int]:
    """Return the indices of the bits that are set, the lowest bit first."""
    if len(data) != (count + 7) // 8:
        raise ValueError(f"the bitmap for {count} tensors has {len(data)} bytes")
    return frozenset(i for i in range(count) if data[i // 8] >> (i % 8) & 1)


def _sparse_forms(data: bytes, layout: Layout) -> dict[int, SparseForm]:
    found: dict[int, SparseForm] = {}
    for index, form in tree.decode(data).items():
        dims, nnz, is_coalesced = form
        if not (type(index) is int and 0 <= index < len(layout) and type(dims) is int and type(nnz) is int):
            raise ValueError(f"the sparse tensor {index!r} has the invalid form {form!r}")
        if not 0 <= dims <= len(layout.tensors[index].shape) or not 0 <= nnz < 1 << 48:
            raise ValueError(f"the sparse tensor {index!r} has the invalid form {form!r}")
        found[index] = SparseForm(dims, nnz, bool(is_coalesced))
    return found
