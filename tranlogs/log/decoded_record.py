"""A decoded record: its tensors, its body, its fingerprint and its scalars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..base.errors import CorruptRecord
from ..base.types import AnyArray, Array
from ..encoding import tree
from .layout import Layout
from .payload_reader import PayloadReader, RecordFile
from .record_body import BASE, WHOLE, PackedBody, Row, merge_bodies, merge_part, unpack_body
from .record_format import Description, EntryKind, Location, offset_of


class Entry(PayloadReader):
    """A record of the log. Its tensors are read from the file on demand.

    A body may refer to other records of the same file that hold parts of it in full.

    Attributes:
        head: the head of the record.
        digests: fingerprint of the state after the step.
        scalars: numbers that the loop logged for its curves.
        body_key: a number that is equal for records of one file that share the body of a step.
    """

    def __init__(self, reader: RecordFile, location: Location, description: Description, layout: Layout) -> None:
        self.head = location.head
        self.digests = description.digests
        self.body_key = offset_of(description.body_at) or location.offset
        self.scalars: dict[str, float] = dict(tree.decode(description.scalars)) if description.scalars else {}
        self._body_at, self._body = description.body_at, description.body
        super().__init__(reader, location, description, layout)

    @property
    def kind(self) -> EntryKind:
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

        Raises:
            CorruptRecord: the body is damaged, or refers to a damaged record.
        """
        return self.part(WHOLE, **make)

    def boundary(self, **make: Any) -> dict[str, Any]:
        """Decode the parts of a boundary. Arguments are those of `body`.

        Raises:
            CorruptRecord: a part is damaged, or refers to a damaged record.
        """
        assert self.kind.is_boundary, f"a record of kind {self.kind.name} is no boundary"
        with self._naming_damage():
            packed = self._packed_body()
            return {name: self._decode(name, packed, make) for name in list(packed) if name != WHOLE and "/" not in name}

    def part(self, name: str, **make: Any) -> Any:
        """Decode one part of the body; None if the body has no such part. Arguments are those of `body`.

        Raises:
            CorruptRecord: the part is damaged, or refers to a damaged record.
        """
        with self._naming_damage():
            packed = self._packed_body()
            return self._decode(name, packed, make) if name in packed else None

    def parts(self) -> dict[str, bytes]:
        """Return the encoded trees of the body's parts, by name.

        Raises:
            CorruptRecord: the body is damaged, or refers to a damaged record.
        """
        with self._naming_damage():
            return {name: blob for name, (blob, _) in self._merged_parts().items()}

    def encoded(self) -> dict[str, tuple[bytes, list[Array]]]:
        """Return each part of the body as it was encoded: its tree, and its large arrays.

        Raises:
            CorruptRecord: the body is damaged, or refers to a damaged record.
        """
        with self._naming_damage():
            merged = self._merged_parts().items()
            return {name: (blob, self._read_arrays(name, blob, rows)) for name, (blob, rows) in merged}

    def _read_arrays(self, name: str, blob: bytes, rows: list[Row]) -> list[Array]:
        found: dict[int, Array] = {}

        def array(index: int, layout: AnyArray) -> AnyArray:
            assert isinstance(layout, Array)
            found[index] = self.reader.read_array(name, rows[index], layout, self.step)
            return found[index]

        tree.decode(blob, array)
        return [found[index] for index in sorted(found)]

    def arrays(self) -> list[tuple[str, Row]]:
        """Return the locations of the body's large arrays, each with the name of its part.

        Raises:
            CorruptRecord: the body is damaged, or refers to a damaged record.
        """
        with self._naming_damage():
            return [(name, row) for name, (_, rows) in self._merged_parts().items() for row in rows]

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

    def _merged_parts(self) -> dict[str, tuple[bytes, list[Row]]]:
        """Return the tree and the array locations of each part."""
        return {name: merge_part(name, part, self._body_of) for name, part in self._packed_body().items()}

    def _decode(self, name: str, packed: PackedBody, make: dict[str, Any]) -> Any:
        """Take a part out of a body, and decode it with the parts that it refers to: each is referred to once."""
        if name not in packed:
            raise tree.MalformedTree(f"the part {name!r} is missing, or is referred to twice")
        blob, rows = merge_part(name, packed.pop(name), self._body_of)

        def array(index: int, layout: AnyArray) -> AnyArray:
            if not index < len(rows):
                raise tree.MalformedTree(f"array {index} is missing: the part has {len(rows)} arrays")
            assert isinstance(layout, Array)
            return self.reader.read_array(name, rows[index], layout, self.step)

        return tree.decode(blob, array, parts=lambda index: self._decode(f"{name}/{index}", packed, make), **make)
