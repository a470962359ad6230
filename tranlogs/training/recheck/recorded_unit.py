"""The records of the unit that is computed again. They are read in another thread, while the script goes to its loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar

from ...base.types import Array, Bytes
from ...log.reader import Record, SegmentReader
from ...log.record_body import WHOLE
from ...log.record_format import RecordKind
from ...recovery.history import LastUnit

_AHEAD_BYTES_MAX = 512 << 20  # tensors beyond this size are read when they are compared

T = TypeVar("T")


class RecordedEntry:
    """A record of the unit. A record that is a step and a boundary counts as two.

    Attributes:
        entry: the decoded record.
        kind: STEP, IMAGE or BOUNDARY.
    """

    def __init__(self, entry: Record, kind: RecordKind) -> None:
        self.entry, self.kind = entry, kind
        self._tensors: Future[Bytes] | None = None
        self._parts: Future[dict[str, tuple[bytes, list[Array]]]] | None = None
        self._body: Future[Any] | None = None

    def read_ahead(self, worker: ThreadPoolExecutor, *, with_tensors: bool) -> None:
        """Let a worker read the record."""
        self._parts = worker.submit(self._read_parts)
        if self.kind != RecordKind.BOUNDARY:
            self._body = worker.submit(self.entry.body)
            if with_tensors and self.entry.raw_bytes:
                self._tensors = worker.submit(self.entry.read_all)

    def tensors(self) -> Bytes:
        """Return the bytes of all tensors, and keep them no longer.

        Raises:
            CorruptRecord: they are damaged.
        """
        future, self._tensors = self._tensors, None
        return self.entry.read_all() if future is None else future.result()

    def parts(self) -> dict[str, tuple[bytes, list[Array]]]:
        """Return the parts of the body as they were encoded.

        Raises:
            CorruptRecord: the body is damaged.
        """
        return self._read_parts() if self._parts is None else self._parts.result()

    def _read_parts(self) -> dict[str, tuple[bytes, list[Array]]]:
        is_boundary = self.kind == RecordKind.BOUNDARY
        return {name: part for name, part in self.entry.encoded().items() if (name != WHOLE) == is_boundary}

    def body(self) -> Any:
        """Return the body of a step, decoded.

        Raises:
            CorruptRecord: it is damaged.
        """
        return self.entry.body() if self._body is None else self._body.result()


class RecordedUnit:
    """The records of a unit, in order.

    Args:
        unit: the unit. Its files stay open until `close`.

    Attributes:
        entries: the records.
    """

    def __init__(self, unit: LastUnit) -> None:
        self._worker = ThreadPoolExecutor(1, "tranlogs-recheck")
        with ExitStack() as stack:
            readers: dict[int, SegmentReader] = {}
            for link in unit.links:
                ordinal = link.segment.row.ordinal
                if ordinal not in readers:
                    reader = SegmentReader(link.segment.path, link.segment.locations)
                    readers[ordinal] = stack.enter_context(reader)
            found = [readers[link.segment.row.ordinal].decode(link.location) for link in unit.links]
            self._files = stack.pop_all()
        self.entries = [RecordedEntry(entry, kind) for entry in found for kind in _kinds_in(entry.kind)]

    def read_ahead(self) -> None:
        """Begin to read the records in another thread."""
        left = _AHEAD_BYTES_MAX
        for one in self.entries:
            left -= one.entry.raw_bytes if one.kind != RecordKind.BOUNDARY else 0
            one.read_ahead(self._worker, with_tensors=left >= 0)

    def aside(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Do something in the thread that reads."""
        return self._worker.submit(work, *arguments)

    def close(self) -> None:
        """Wait for the thread, and close the files."""
        self._worker.shutdown(cancel_futures=True)
        self._files.close()


def _kinds_in(kind: RecordKind) -> tuple[RecordKind, ...]:
    return (RecordKind.STEP, RecordKind.BOUNDARY) if kind == RecordKind.UNIT else (kind,)
