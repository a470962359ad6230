"""Two ways to write entries with one face: on the training thread, or behind it in a thread of its own.

The second is for devices whose copies finish later (GPU). Contents are copied into pooled buffers when they are added, unless
they are copies already, on their way from a device (`Staged`): for those the writer thread waits. The training thread
waits only when the queue is full (back-pressure).
"""

from __future__ import annotations

from typing import Any, Protocol

from ..codec import tree
from ..codec.entry import EntryKind
from ..errors import LogUnavailable, in_words
from ..types import AnyArray, Array, SparseArray, Staged
from ..wal.entry_writer import EntryWriter, Scalars, Tensor, encode_body
from ..wal.log import WriteAheadLog
from .handover import BufferPool, HandOver


class StepRecord(Protocol):
    """A step being logged."""

    @property
    def is_open(self) -> bool: ...

    def add(self, name: str, content: AnyArray | None) -> None: ...

    def wait(self) -> None:
        """Wait until the tensors are written: their memory may change then."""

    def abort(self) -> None: ...


class Writer(Protocol):
    """Writes the entries of one log.

    Raises:
        LogUnavailable: the disk is full or fails.
    """

    def begin(self, nbytes: int, frames: int) -> StepRecord:
        """Start the record of a step: `nbytes` of tensors in `frames` frames."""

    def commit(self, record: StepRecord, step: int, body: dict[str, Any], adapt: tree.Adapt | None) -> None:
        """Finish the record of a step."""

    def append(self, kind: EntryKind, step: int, tensors: list[Tensor], body: dict[str, Any], adapt: tree.Adapt | None,
               scalars: Scalars | None) -> None:  # fmt: skip
        """Write a whole entry."""


class DirectWriter:
    """On the training thread: a tensor is copied once, into the map of the segment."""

    def __init__(self, wal: WriteAheadLog) -> None:
        self._wal = wal

    def begin(self, nbytes: int, frames: int) -> StepRecord:
        return self._wal.begin(nbytes, frames)

    def commit(self, record: StepRecord, step: int, body: dict[str, Any], adapt: tree.Adapt | None) -> None:
        assert isinstance(record, EntryWriter)
        record.commit(EntryKind.STEP, step, body, adapt=adapt)

    def append(self, kind: EntryKind, step: int, tensors: list[Tensor], body: dict[str, Any], adapt: tree.Adapt | None,
               scalars: Scalars | None) -> None:  # fmt: skip
        self._wal.append(kind, step, tensors, body, adapt=adapt, scalars=scalars)


class QueuedWriter:
    """In the thread of a `HandOver`. A job that fails latches there: what comes after it is refused."""

    def __init__(self, wal: WriteAheadLog, handover: HandOver) -> None:
        self._wal, self._handover = wal, handover

    def begin(self, nbytes: int, frames: int) -> StepRecord:
        return QueuedRecord(self._handover)

    def commit(self, record: StepRecord, step: int, body: dict[str, Any], adapt: tree.Adapt | None) -> None:
        assert isinstance(record, QueuedRecord)
        self._submit(record, EntryKind.STEP, step, body, adapt, None)

    def append(self, kind: EntryKind, step: int, tensors: list[Tensor], body: dict[str, Any], adapt: tree.Adapt | None,
               scalars: Scalars | None) -> None:  # fmt: skip
        record = QueuedRecord(self._handover)
        for name, content in tensors:
            record.add(name, content)
        self._submit(record, kind, step, body, adapt, scalars)

    def _submit(self, record: QueuedRecord, kind: EntryKind, step: int, body: dict[str, Any], adapt: tree.Adapt | None,
                scalars: Scalars | None) -> None:  # fmt: skip
        """Queue an entry. Its body is encoded now: what it refers to may change before the writer gets to it."""
        handover, wal, tensors = self._handover, self._wal, record.tensors
        if handover.failure is not None:
            raise LogUnavailable(in_words(handover.failure)) from handover.failure
        far: list[tuple[str, AnyArray]] = []
        pool = handover.pool
        encoded = encode_body(body, tensors, adapt, far)
        held = [(name, copied_dense(pool, array)) for name, array in far]
        copies: list[AnyArray | None] = [content for _, content in tensors] + [array for _, array in held]
        nbytes = sum(content.nbytes for content in copies if content is not None)

        def job() -> None:
            wait_for(copies)
            wal.append_encoded(kind, step, tensors, encoded, held, scalars)
            for content in copies:
                given_back(pool, content)

        handover.submit(nbytes, job)


class QueuedRecord:
    """A record that is handed over: contents are copied when they are added."""

    def __init__(self, handover: HandOver) -> None:
        self._pool = handover.pool
        self.tensors: list[Tensor] = []
        self.is_open = True

    def add(self, name: str, content: AnyArray | None) -> None:
        self.tensors.append((name, copied(self._pool, content)))

    def wait(self) -> None:
        """The tensors were copied."""

    def abort(self) -> None:
        for _, content in self.tensors:
            given_back(self._pool, content)
        self.tensors, self.is_open = [], False


def copied(pool: BufferPool, content: AnyArray | None) -> AnyArray | None:
    """A pooled copy of a tensor; one that is on its way is a copy already."""
    if content is None or isinstance(content, Staged):
        return content
    if isinstance(content, SparseArray):
        return SparseArray(content.shape, pool.copy(content.indices), pool.copy(content.values), content.is_coalesced)
    return pool.copy(content)


def copied_dense(pool: BufferPool, content: AnyArray) -> AnyArray:
    """A pooled copy of an array that stands in a body (sparse ones are taken apart there)."""
    assert isinstance(content, Array)
    return pool.copy(content)


def wait_for(contents: list[AnyArray | None]) -> None:
    """Until those that are on their way have come."""
    for content in contents:
        if isinstance(content, Staged):
            content.arrived()


def given_back(pool: BufferPool, content: AnyArray | None) -> None:
    """Return the copies of a tensor to the pool."""
    if isinstance(content, SparseArray):
        pool.give_back(content.indices)
        pool.give_back(content.values)
    elif content is not None and not isinstance(content, Staged):
        pool.give_back(content)
