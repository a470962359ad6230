"""The writer of records: on the training thread, or through the queue of a writer thread.

The queue is for devices whose copies finish later (GPU). Memory that is being copied from a device belongs to the record, and
the writer thread waits for the copy. All other memory is copied into pooled buffers when a record is queued. The training
thread waits only while the queue is full.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

from ..base.errors import LogUnavailable, error_text
from ..base.types import Array
from ..encoding import tree
from ..log.layout import Payload
from ..log.payload_writer import Record
from ..log.record_body import BodyEncoder, EncodedContent, Part, Scalars, body_bytes
from ..log.record_format import COVERED_MAX, RecordKind
from ..log.writer import WriteAheadLog
from ..log.writer_thread import BufferPool, WriterThread

Body = dict[str, Any] | tree.Fixed  # A `Fixed` that the previous record had, too, is not encoded again.


@dataclass(slots=True)
class RecordContent:
    """What a record holds besides its tensors.

    Attributes:
        body: plain values and small arrays.
        adapt: turns the framework's values in the body into arrays and extensions.
        covered: the number of steps before a boundary that have no records.
    """

    kind: RecordKind
    step: int
    body: Body
    digests: bytes = b""
    adapt: tree.Adapt | None = None
    scalars: Scalars | None = None
    covered: int = 0


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


class LogWriter:
    """Writes the records of one log. The record of a step is closed by the boundary after it, or by the next record.

    Without a thread, records are written on the training thread, and the log writes a large payload in another one while the
    optimizer steps. With a thread, records are queued. After one of them could not be written, further ones are refused.

    The body of a step is encoded at once, because the state may change before the record is closed. If the loop works for long
    between a step and its boundary, another thread closes the record before it seals the segment.
    """

    def __init__(self, log: WriteAheadLog, thread: WriterThread | None = None) -> None:
        self._log, self._thread = log, thread
        self._lock = threading.Lock()  # guards what follows, and the order of the records
        self._held: tuple[Record, EncodedContent] | None = None  # of the step that waits for its boundary
        self._step = log.position.step  # of the newest record, written or held
        self._failure: BaseException | None = None  # of another thread, which has lost the record of a step
        log.close_held = self.close_held

    def begin(self, payload: Payload) -> Record:
        with self._lock:
            self._close_step()
            return self._begin(payload)

    def commit(self, record: StepRecord, content: RecordContent) -> None:
        assert isinstance(record, Record)
        with self._lock:
            self._close_step()  # Queued records of two optimizers may be open at once.
            self._commit(record, content)

    def append(self, payload: Payload, content: RecordContent) -> None:
        with self._lock:
            if content.kind == RecordKind.STEP:
                self._close_step()
                self._commit(self._begin(payload), content)
                return
            self._require_step(content, self._step + content.covered)
            if content.covered > COVERED_MAX:
                raise LogUnavailable(f"a boundary covers at most {COVERED_MAX} steps without tensors, got {content.covered}")
            encoded, held = encode_content(self._log.encoder, content), self._held
            nbytes = body_bytes(encoded.body)
            ends_step = content.kind == RecordKind.BOUNDARY and not content.covered
            if held is not None and ends_step and held[0].has_room(nbytes):
                self._held = None
                record, unit = held
                unit.kind, unit.body, unit.scalars = RecordKind.UNIT, {**unit.body, **encoded.body}, content.scalars
                self._write(record, unit)
                return
            self._close_step()
            record = self._begin(payload, nbytes)
            self._step = content.step
            self._write(record, encoded)

    def close_held(self) -> None:
        """Close the record of the step that waits for its boundary, unless another thread writes now. Any thread may call this.

        Raises:
            LogUnavailable: the disk is full or fails; the record is dropped.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._close_step()
            except BaseException as error:
                self._failure = error  # The training thread must not go on as if the step were in the log.
                raise
            finally:
                self._lock.release()

    def stop(self) -> None:
        """Drop the record of the step that waits for its boundary, because the log is being closed."""
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                held[0].abort()

    def _refuse(self, failure: BaseException) -> NoReturn:
        """Refuse further records, because another thread has lost the record of a step."""
        raise LogUnavailable(error_text(failure)) from failure

    def _require_step(self, content: RecordContent, step: int) -> None:
        """Refuse a record after a step whose record was lost: redo would not reach the state after it."""
        if self._failure is not None:
            self._refuse(self._failure)
        if content.step != step:
            raise LogUnavailable(f"a record of step {content.step} cannot follow one of step {self._step}: a record was lost")

    def _commit(self, record: Record, content: RecordContent) -> None:
        self._require_step(content, self._step + 1)
        encoded = encode_content(self._log.encoder, content)
        if type(content.body) is not tree.Fixed:  # Nobody writes to the arrays of a `Fixed`.
            encoded.body = {name: copy_part(part) for name, part in encoded.body.items()}
        record.hold()
        self._held, self._step = (record, encoded), content.step

    def _close_step(self) -> None:
        if self._failure is not None:
            self._refuse(self._failure)
        held, self._held = self._held, None
        if held is not None:
            self._write(*held)

    def _begin(self, payload: Payload, more: int = 0) -> Record:
        """Start a record, which may need `more` bytes besides its payload."""
        if self._thread is None:
            return self._log.begin(payload, more)
        return Record(copy_payload(self._thread.pool, payload))

    def _write(self, record: Record, content: EncodedContent) -> None:
        """Finish a record."""
        if self._thread is None:
            self._log.commit(record, content)
        else:
            self._queue(self._thread, record, content)

    def _queue(self, thread: WriterThread, record: Record, content: EncodedContent) -> None:
        """Queue a record with copies of its large arrays."""
        log, pool, payload = self._log, thread.pool, record.payload
        try:
            if thread.failure is not None:
                raise LogUnavailable(error_text(thread.failure)) from thread.failure
            parts = {name: copy_part(part, pool.copy) for name, part in content.body.items()}
        except BaseException:
            record.abort()
            raise
        copies = [array for part in parts.values() for array in part.arrays]
        queued, record.is_open = replace(content, body=parts), False

        def job() -> None:
            log.append(payload, queued)
            for array in copies:
                pool.give_back(array)

        thread.submit(payload.nbytes + sum(array.nbytes for array in copies), job)


def encode_content(encoder: BodyEncoder, content: RecordContent) -> EncodedContent:
    """Encode the content of a record. The body of a boundary is encoded part by part."""
    if content.kind is RecordKind.BOUNDARY:
        assert isinstance(content.body, dict), "the parts of a boundary are fixed one by one"
        body = encoder.parts(content.body, content.adapt)
    else:
        body = encoder.whole(content.body, content.adapt)
    return EncodedContent(content.kind, content.step, body, content.digests, content.scalars, content.covered)


def copy_payload(pool: BufferPool, payload: Payload) -> Payload:
    """Return the payload with a copy of its memory. Memory that is being copied from a device is not copied again."""
    if payload.wait is not None or payload.release is not None:
        return payload
    copies = [pool.copy(Array("uint8", (buffer.nbytes,), buffer)) for buffer in payload.buffers]

    def release() -> None:
        for copy in copies:
            pool.give_back(copy)

    return Payload(payload.layout, [copy.data for copy in copies], payload.absent, payload.sparse, release=release)


def copy_part(part: Part, copy: Callable[[Array], Array] = lambda array: replace(array, data=array.data.copy())) -> Part:
    """Return the part with copies of its large arrays; the part itself if it has none."""
    return Part(part.blob, [copy(array) for array in part.arrays]) if part.arrays else part
