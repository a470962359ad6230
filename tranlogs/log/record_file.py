"""The file of one segment, open for reading, with all that its records refer to. All checksums are compared.

A record may refer to other records of its segment: to the record that defines its layout, and to records that hold parts of
its body in full. References are places in the file, so records can be decoded in any order.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterable
from pathlib import Path

from ..base import lazy_numpy as np
from ..base.atomic_files import ReadFile
from ..base.errors import CannotRead, CorruptRecord
from ..base.types import ITEMSIZE, Array, Bytes
from ..encoding import tree
from ..encoding.compression import Codec, decompress
from .layout import Layout, unpack_layout
from .record_body import PackedBody, Row, unpack_body
from .record_format import (
    HEAD,
    Description,
    Location,
    checksum_of,
    offset_of,
    pack_place,
    unpack_description,
    unpack_head,
    unpack_scalars,
)

_NO_LAYOUT = Layout(())
_CACHED_MAX = 4096  # decoded layouts and bodies that are kept in memory
_WINDOW_BYTES = 1 << 18  # bytes in one read ahead
_AHEAD_MAX = 1 << 15  # Larger reads do not use the window.


class RecordFile(ReadFile):
    """The file of one segment, open for reading. Methods raise CorruptRecord for what is damaged.

    Args:
        locations: records of the segment whose heads are known. If such a head is damaged in the file, a record can still refer
            to it.
        reads_ahead: serve small reads from a window that is read ahead, so that neighbouring records are read together. Only
            for records that were in the file when the reader was opened.

    Raises:
        CorruptRecord: the file is being recycled.
        CannotRead: the process lacks file handles, memory or permissions.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, locations: Iterable[Location] = (), *, reads_ahead: bool = False) -> None:
        super().__init__(path)
        self.path = path
        self._reads_ahead = reads_ahead
        self._window: tuple[int, bytes] = 0, b""
        try:  # A shared lock keeps the file from being recycled.
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise CorruptRecord(path, "the file is being recycled, because its records were pruned") from None
        except OSError:  # The file system has no locks, so the file cannot be recycled, either.
            pass
        self._locations, self._by_offset = locations, dict[int, Location]()
        self._layouts: dict[int, Layout] = {}
        self._bodies: dict[int, PackedBody] = {}
        self._is_sound: dict[tuple[int, ...], bool] = {}  # by location of an array

    def scalars(self, location: Location) -> dict[str, float]:
        """Return the scalars of a record, and decode nothing else of it."""
        try:
            packed = unpack_scalars(self._read_description(location))
            return dict(tree.decode(packed)) if packed else {}
        except (ValueError, TypeError) as error:
            raise self.make_unreadable(location, error) from None

    def fill(self, into: Bytes, offset: int) -> str:
        """Read bytes; see `ReadFile.fill`."""
        data = self._ahead(offset, into.nbytes)
        if data is None:
            return super().fill(into, offset)
        into.data[:] = data
        return ""

    def _ahead(self, offset: int, size: int) -> memoryview | None:
        """Return bytes of a window that is read ahead; None if they have to be read alone."""
        if not self._reads_ahead or size > _AHEAD_MAX:
            return None
        base, data = self._window
        if not base <= offset <= base + len(data) - size:
            try:
                base, data = offset, os.pread(self.fd, _WINDOW_BYTES, offset)
            except (OSError, OverflowError):
                return None
            self._window = base, data
        found = memoryview(data)[offset - base : offset - base + size]
        return found if found.nbytes == size else None  # The file may end before.

    def description(self, location: Location) -> Description:
        """Return the description of the record at a location."""
        try:
            return unpack_description(self._read_description(location))
        except ValueError as error:
            raise self.make_unreadable(location, error) from None

    def _read_description(self, location: Location) -> bytes:
        head = location.head
        ahead = self._ahead(location.description_offset, head.description_bytes)
        if ahead is not None and checksum_of(data := bytes(ahead)) == head.description_sum:
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

    def make_unreadable(self, location: Location, error: Exception) -> CorruptRecord:
        """Return the error for a record of which the description cannot be decoded."""
        return CorruptRecord(self.path, f"its description cannot be read ({error})", step=location.head.step)

    # References to other records.

    def layout_of(self, location: Location, description: Description) -> Layout:
        """Return the layout of a record. It is defined in the record, or in an earlier one of the segment.

        Raises:
            CorruptRecord: the record that defines the layout is damaged.
            ValueError: the layout cannot be decoded.
        """
        if description.layout:
            place = pack_place(location.offset, location.head.digest)
            layout = self._layouts[place] = unpack_layout(description.layout)
            return layout
        if description.layout_at:
            return self._layout_at(description.layout_at, location.head.step)
        return _NO_LAYOUT

    def _layout_at(self, place: int, step: int) -> Layout:
        layout = self._layouts.get(place)
        if layout is None:
            data = self._referenced(place, step).layout
            if not data:
                raise ValueError(f"the record at byte {offset_of(place)} defines no layout")
            if len(self._layouts) >= _CACHED_MAX:
                self._layouts.clear()
            layout = self._layouts[place] = unpack_layout(data)
        return layout

    def body_at(self, place: int, step: int) -> PackedBody:
        """Return the packed body of the record at a place, to which a record of `step` refers.

        Raises:
            CorruptRecord: the record there is damaged, or another one.
            ValueError: the record there has no body.
        """
        body = self._bodies.get(place)
        if body is None:
            body = unpack_body(self._referenced(place, step).body)
            if len(self._bodies) >= _CACHED_MAX:
                self._bodies.clear()
            self._bodies[place] = body
        return body

    def _referenced(self, place: int, step: int) -> Description:
        """Return the description of the record at a place, to which a record of `step` refers."""
        offset = offset_of(place)
        try:
            head = unpack_head(os.pread(self.fd, HEAD.size, offset))
        except OSError as error:
            CannotRead.raise_for(self.path, error)
            head = None
        try:
            if head is not None and pack_place(offset, head.digest) == place:
                return self.description(Location(head, offset))
            self._by_offset = self._by_offset or {one.offset: one for one in self._locations}
            known = self._by_offset.get(offset)
            if known is not None and pack_place(offset, known.head.digest) == place:
                return self.description(known)
        except CorruptRecord:
            pass
        raise CorruptRecord(self.path, f"the record refers to the record at byte {offset}, which is damaged", step=step)

    # Large arrays of bodies.

    def read_array(self, name: str, row: Row, layout: Array, step: int) -> Array:
        """Read a large array of a body, and compare its checksum.

        Args:
            layout: an array of the same dtype, shape and strides, without data.
        """
        codec = row[3]
        total = math.prod(layout.shape) * ITEMSIZE[layout.dtype]
        stored = self._stored_array(name, row, step)
        if codec == Codec.RAW:
            if stored.nbytes != total:
                raise CorruptRecord(self.path, f"expected {total} bytes, found {stored.nbytes}", step=step, tensor=name)
            data = stored
        else:
            data = np.empty(total, np.uint8)
            try:
                decompress(codec, stored, data)
            except ValueError as error:
                raise CorruptRecord(self.path, str(error), step=step, tensor=name) from None
        return Array(layout.dtype, layout.shape, data, layout.strides, layout.is_tensor)

    def is_sound(self, row: Row) -> bool:
        """Return True if the checksum of a large array matches. An array that many records share is read once."""
        key = tuple(row)
        if key not in self._is_sound:
            try:
                self._stored_array("", row, 0)
                self._is_sound[key] = True
            except CorruptRecord:
                self._is_sound[key] = False
        return self._is_sound[key]

    def _stored_array(self, name: str, row: Row, step: int) -> Bytes:
        offset, nbytes, checksum, _ = row
        size = os.fstat(self.fd).st_size
        if offset + nbytes > size:
            raise CorruptRecord(self.path, "the file ends before the array does", step=step, tensor=name)
        data = np.empty(nbytes, np.uint8)
        if problem := self.fill(data, offset):
            raise CorruptRecord(self.path, problem, step=step, tensor=name)
        if checksum_of(data) != checksum:
            raise CorruptRecord(self.path, "the checksum of its bytes differs", step=step, tensor=name)
        return data
