"""The upload of one item. Any thread may send a part, in any order; a part is sent until the store holds it."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from ...base.errors import StoreRefused, StoreUnavailable
from ...base.failpoints import hit
from ...catalog import CheckpointRow, SegmentRow, ShippedRow
from ...stores import Store
from ..items.item_files import FilePart, PartReader, UploadSource, open_checkpoint, open_segment
from ..items.throttle import Throttle
from ..manifest import OBJECTS, ShippedItem


class Upload:
    """A segment or checkpoint that is being uploaded.

    Attributes:
        row: its catalog row.
        name: its name in the manifest.
    """

    def __init__(self, row: SegmentRow | CheckpointRow, journal: Path) -> None:
        self.row, self._journal = row, journal
        self.name = row.file if isinstance(row, SegmentRow) else row.name
        self._lock = threading.Lock()
        self._source: UploadSource | None = None
        self._is_opening = False
        self._todo: list[tuple[int, FilePart]] = []
        self._in_flight = 0
        self._parts: dict[int, tuple[str, list[Any]]] = {}
        self._count = 0
        self._is_closed = False

    def open(self) -> None:
        """Open and verify the item's files.

        Raises:
            CorruptRecord, CorruptCheckpoint: the item is damaged.
            OSError: the item cannot be opened, or was deleted.
        """
        if isinstance(self.row, SegmentRow):
            source = open_segment(self._journal / "log", self.row)
        else:
            source = open_checkpoint(self._journal / "checkpoints", self.row)
        with self._lock:
            self._source, self._todo = source, list(enumerate(source.parts()))
            self._count = len(self._todo)
            self._close_if_idle()

    def claim_opening(self) -> bool:
        """Return True to the first caller, which must call `open`."""
        with self._lock:
            is_first, self._is_opening = not self._is_opening, True
            return is_first

    def claim(self) -> tuple[int, FilePart] | None:
        """Return a part to send, and its number; None if there is none now."""
        with self._lock:
            if not self._todo or self._is_closed:
                return None
            self._in_flight += 1
            return self._todo.pop(0)

    def send(self, claimed: tuple[int, FilePart], store: Store, prefix: str, writer: str, throttle: Throttle) -> int:
        """Send a part as an object with a new name, check that the store holds the object, and return its size.

        Raises:
            StoreUnavailable, StoreRefused, LogUnavailable: the part was not sent, and can be claimed again.
        """
        number, part = claimed
        folder = "log" if isinstance(self.row, SegmentRow) else "checkpoints"
        stem = self.name if isinstance(self.row, SegmentRow) else f"{self.name}/{part.file}"
        name = f"{prefix}/{OBJECTS}/{folder}/{stem}.{number:05d}-{writer[:8]}{secrets.token_hex(4)}"
        try:
            content = PartReader(part, throttle)
            store.put(name, cast(BinaryIO, content), part.nbytes)
            hit("ship.sent")
            status, digest = store.stat(name), content.digest()
            if digest is None or status is None or not status.is_complete or status.nbytes != part.nbytes:
                raise StoreUnavailable(store.url, f"{name} was written, but the store does not hold it in full ({status})")
        except BaseException:  # After any error, the part must be claimed again.
            with self._lock:
                self._in_flight -= 1
                self._todo.insert(0, claimed)
                self._close_if_idle()
            with suppress(StoreUnavailable, StoreRefused):
                store.delete(name)
            raise
        with self._lock:
            self._in_flight -= 1
            self._parts[number] = part.file, [name, part.nbytes, digest]
            self._close_if_idle()
        return part.nbytes

    @property
    def is_complete(self) -> bool:
        """True if the store holds every part."""
        with self._lock:
            return self._source is not None and len(self._parts) == self._count

    def to_item(self, now: float) -> ShippedItem:
        """Return the item as the manifest describes it."""
        assert self.is_complete
        assert self._source is not None
        files: dict[str, list[list[Any]]] = {}
        for number in sorted(self._parts):
            file, part = self._parts[number]
            files.setdefault(file, []).append(part)
        source = self._source
        return ShippedItem(self.row, ShippedRow(self.name, files, at=now, **source.chain_ends))

    def close(self) -> None:
        """Send no more parts, and close the files as soon as no thread reads them."""
        with self._lock:
            self._is_closed = True
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._is_closed and self._source is not None and not self._in_flight:
            self._source.close()

    def sent_objects(self) -> list[str]:
        """Return the names of the objects that were sent so far."""
        with self._lock:
            return [part[0] for _, part in self._parts.values()]
