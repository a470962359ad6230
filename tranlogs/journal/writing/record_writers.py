"""Writers of records with a common interface: on the training thread, or through the queue of a writer thread.

The queue is for devices whose copies finish later (GPU). Memory that is being copied from a device belongs to the record, and
the writer thread waits for the copy. All other memory is copied into pooled buffers when a record is queued. The training
thread waits only while the queue is full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ...base.errors import LogUnavailable, error_text
from ...base.types import Array
from ...encoding import tree
from ...log.layout import Payload
from ...log.record_body import BodyEncoder, EncodedBody, Part
from ...log.record_format import EntryKind
from ...log.record_writer import RecordWriter
from ...log.segment_definitions import Scalars
from ...log.writer import WriteAheadLog
from .writer_thread import BufferPool, WriterThread

Body = dict[str, Any] | tree.Fixed  # A `Fixed` that the previous record had, too, is not encoded again.


@dataclass(slots=True)
class RecordContent:
    """What a record holds besides its tensors.

    Attributes:
        kind: of the record.
        step: the step.
        body: plain values and small arrays.
        digests: fingerprint of the state after the step.
        adapt: turns the framework's values in the body into arrays and extensions.
        scalars: numbers that the loop logs for its curves.
    """

    kind: EntryKind
    step: int
    body: Body
    digests: bytes = b""
    adapt: tree.Adapt | None = None
    scalars: Scalars | None = None


class StepRecord(Protocol):
    """The record of a step, from `Writer.begin` to `Writer.commit`."""

    @property
    def is_open(self) -> bool:
        """True until the record is committed or dropped."""

    def wait(self) -> None:
        """Wait until the tensors are written, so that their memory may change."""

    def abort(self) -> None:
        """Drop the record, unless it is committed."""


class Writer(Protocol):
    """Writes the records of one log.

    Raises:
        LogUnavailable: the disk is full or fails.
    """

    def begin(self, payload: Payload) -> StepRecord:
        """Start the record of a step."""

    def commit(self, record: StepRecord, content: RecordContent) -> None:
        """Finish the record of a step."""

    def append(self, payload: Payload, content: RecordContent) -> None:
        """Write a whole record."""


class DirectWriter:
    """Writes records on the training thread. The log writes a large payload in another thread between begin and commit."""

    def __init__(self, log: WriteAheadLog) -> None:
        self._log = log

    def begin(self, payload: Payload) -> StepRecord:
        return self._log.begin(payload)

    def commit(self, record: StepRecord, content: RecordContent) -> None:
        assert isinstance(record, RecordWriter)
        body = self._log.encoder.whole(content.body, content.adapt)
        self._log.commit(record, content.kind, content.step, body, content.digests)

    def append(self, payload: Payload, content: RecordContent) -> None:
        body = encode_body(self._log.encoder, content)
        self._log.append(content.kind, content.step, payload, body, content.digests, content.scalars)


class QueuedWriter:
    """Writes records in the thread of a `WriterThread`. After a job has failed, further records are refused."""

    def __init__(self, log: WriteAheadLog, writer_thread: WriterThread) -> None:
        self._log, self._writer_thread = log, writer_thread

    def begin(self, payload: Payload) -> StepRecord:
        return QueuedRecord(copy_payload(self._writer_thread.pool, payload))

    def commit(self, record: StepRecord, content: RecordContent) -> None:
        assert isinstance(record, QueuedRecord)
        self._submit(record, content)

    def append(self, payload: Payload, content: RecordContent) -> None:
        record = QueuedRecord(copy_payload(self._writer_thread.pool, payload))
        try:
            self._submit(record, content)
        except BaseException:
            record.abort()
            raise

    def _submit(self, record: QueuedRecord, content: RecordContent) -> None:
        """Queue a record. Its body is encoded now, because the state may change before the record is written."""
        writer_thread, log, pool, payload = self._writer_thread, self._log, self._writer_thread.pool, record.payload
        if writer_thread.failure is not None:
            raise LogUnavailable(error_text(writer_thread.failure)) from writer_thread.failure
        body_parts = {name: _copy_part(pool, part) for name, part in encode_body(log.encoder, content).items()}
        copies = [array for part in body_parts.values() for array in part.arrays]
        nbytes = payload.nbytes + sum(array.nbytes for array in copies)
        record.is_open = False

        def job() -> None:
            log.append(content.kind, content.step, payload, body_parts, content.digests, content.scalars)
            for array in copies:
                pool.give_back(array)

        writer_thread.submit(nbytes, job)


class QueuedRecord:
    """A record that is queued as a whole. Its payload is a copy, or is being copied from a device."""

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        self.is_open = True

    def wait(self) -> None:
        """Return at once: the payload is a copy."""

    def abort(self) -> None:
        if self.is_open:
            self.is_open = False
            if self.payload.release is not None:
                self.payload.release()


def encode_body(encoder: BodyEncoder, content: RecordContent) -> EncodedBody:
    """Encode the body of a record. That of a boundary is encoded part by part."""
    if content.kind != EntryKind.BOUNDARY:
        return encoder.whole(content.body, content.adapt)
    assert isinstance(content.body, dict), "the parts of a boundary are fixed one by one"
    return encoder.parts(content.body, content.adapt)


def copy_payload(pool: BufferPool, payload: Payload) -> Payload:
    """Return the payload with a copy of its memory. Memory that is being copied from a device is not copied again."""
    if payload.wait is not None or payload.release is not None:
        return payload
    copies = [pool.copy(Array("uint8", (buffer.nbytes,), buffer)) for buffer in payload.buffers]

    def release() -> None:
        for copy in copies:
            pool.give_back(copy)

    return Payload(payload.layout, [copy.data for copy in copies], payload.absent, payload.sparse, release=release)


def _copy_part(pool: BufferPool, part: Part) -> Part:
    if not part.arrays:
        return part
    return Part(part.blob, [pool.copy(array) for array in part.arrays])
