"""One item on its way to the store: its parts are sent by any thread, in any order, each until the store has it."""

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
from ..inventory.manifest import OBJECTS, Shipped
from .source import Piece, PieceFile, Source, open_checkpoint, open_segment
from .throttle import Throttle


class Upload:
    """See the module.

    Attributes:
        row: what is sent.
        name: its name in the manifest.
    """

    def __init__(self, row: SegmentRow | CheckpointRow, journal: Path) -> None:
        self.row, self._journal = row, journal
        self.name = row.file if isinstance(row, SegmentRow) else row.name
        self._lock = threading.Lock()
        self._source: Source | None = None
        self._is_opening = False
        self._todo: list[tuple[int, Piece]] = []
        self._under_way = 0
        self._parts: dict[int, tuple[str, list[Any]]] = {}
        self._count = 0
        self._is_closed = False

    def open(self) -> None:
        """Open and verify what is sent.

        Raises:
            CorruptRecord, CorruptCheckpoint, OSError: it is damaged, or not there any more.
        """
        if isinstance(self.row, SegmentRow):
            source = open_segment(self._journal / "log", self.row)
        else:
            source = open_checkpoint(self._journal / "checkpoints", self.row)
        with self._lock:
            self._source, self._todo = source, list(enumerate(source.pieces()))
            self._count = len(self._todo)
            self._close_if_idle()

    def claim_opening(self) -> bool:
        """Whether the caller is to open it: once."""
        with self._lock:
            is_first, self._is_opening = not self._is_opening, True
            return is_first

    def claim(self) -> tuple[int, Piece] | None:
        """A piece to send; None where there is none now."""
        with self._lock:
            if not self._todo or self._is_closed:
                return None
            self._under_way += 1
            return self._todo.pop(0)

    def send(self, claimed: tuple[int, Piece], store: Store, place: str, writer: str, throttle: Throttle) -> int:
        """Send a piece under a name of its own, and look whether the store has it; gives its bytes.

        Raises:
            StoreUnavailable, StoreRefused, LogUnavailable: it was not sent; it is to be claimed again.
        """
        number, piece = claimed
        folder = "log" if isinstance(self.row, SegmentRow) else "checkpoints"
        stem = self.name if isinstance(self.row, SegmentRow) else f"{self.name}/{piece.file}"
        name = f"{place}/{OBJECTS}/{folder}/{stem}.{number:05d}-{writer[:8]}{secrets.token_hex(4)}"
        try:
            content = PieceFile(piece, throttle)
            store.put(name, cast(BinaryIO, content), piece.nbytes)
            hit("ship.sent")
            status, digest = store.stat(name), content.digest()
            if digest is None or status is None or not status.is_complete or status.nbytes != piece.nbytes:
                raise StoreUnavailable(store.url, f"{name} was written, and is not there as it was written ({status})")
        except BaseException:  # whatever it was, the piece is to be claimed again
            with self._lock:
                self._under_way -= 1
                self._todo.insert(0, claimed)
                self._close_if_idle()
            with suppress(StoreUnavailable, StoreRefused):
                store.delete(name)
            raise
        with self._lock:
            self._under_way -= 1
            self._parts[number] = piece.file, [name, piece.nbytes, digest]
            self._close_if_idle()
        return piece.nbytes

    @property
    def is_complete(self) -> bool:
        """Whether the store has all of it."""
        with self._lock:
            return self._source is not None and len(self._parts) == self._count

    def shipped(self, now: float) -> Shipped:
        """What the manifest says of it."""
        assert self.is_complete
        assert self._source is not None
        files: dict[str, list[list[Any]]] = {}
        for number in sorted(self._parts):
            file, part = self._parts[number]
            files.setdefault(file, []).append(part)
        source = self._source
        return Shipped(self.row, ShippedRow(self.name, files, at=now, **source.places))

    def close(self) -> None:
        """Send no more of it; its files are let go as soon as nobody reads them."""
        with self._lock:
            self._is_closed = True
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._is_closed and self._source is not None and not self._under_way:
            self._source.close()

    def sent(self) -> list[str]:
        """The names of its objects so far."""
        with self._lock:
            return [part[0] for _, part in self._parts.values()]
