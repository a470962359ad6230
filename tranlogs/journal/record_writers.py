"""Writers of records with a common interface: on the training thread, or through the queue of a writer thread.

The queue is for devices whose copies finish later (GPU). Memory that is being copied from a device belongs to the record, and
the writer thread waits for the copy. All other memory is copied into pooled buffers when a record is queued. The training
thread waits only while the queue is full.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ..base.config import QUEUE_JOBS_MAX
from ..base.errors import LogUnavailable, error_text
from ..base.threads import WaitableLock, start_thread
from ..base.types import Array, Bytes
from ..encoding import tree
from ..log.layout import Payload
from ..log.payload_writer import RecordWriter
from ..log.record_body import BodyEncoder, EncodedBody, Part, body_bytes
from ..log.record_format import EntryKind
from ..log.segment_definitions import Scalars
from ..log.writer import WriteAheadLog

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


@dataclass(slots=True)
class _HeldStep:
    """A step that was taken, and whose record is not closed: the boundary that ends the unit may become a part of it."""

    record: StepRecord
    step: int
    body: EncodedBody
    digests: bytes


class LogWriter(ABC):
    """Writes the records of one log. The record of a step is closed by the boundary after it, or by the next record.

    The body of a step is encoded at once, because the state may change before the record is closed. If the loop works for long
    between a step and its boundary, another thread closes the record before it seals the segment.
    """

    def __init__(self, log: WriteAheadLog) -> None:
        self._log = log
        self._lock = threading.Lock()  # guards what follows, and the order of the records
        self._held: _HeldStep | None = None
        self._step = log.position.step  # of the newest record, written or held
        self._failure: BaseException | None = None  # of another thread, which has lost the record of a step
        log.close_held = self.close_held

    def begin(self, payload: Payload) -> StepRecord:
        with self._lock:
            self._close_step()
            return self._begin(payload)

    def commit(self, record: StepRecord, content: RecordContent) -> None:
        with self._lock:
            self._close_step()  # Queued records of two optimizers may be open at once.
            self._commit(record, content)

    def append(self, payload: Payload, content: RecordContent) -> None:
        with self._lock:
            if content.kind == EntryKind.STEP:
                self._close_step()
                self._commit(self._begin(payload), content)
                return
            self._require_step(content, self._step)
            body, held = encode_body(self._log.encoder, content), self._held
            is_end = content.kind == EntryKind.BOUNDARY
            if held is not None and is_end and self._has_room(held.record, body_bytes(body)):
                self._held = None
                self._write(held.record, EntryKind.UNIT, held.step, {**held.body, **body}, held.digests, content.scalars)
                return
            self._close_step()
            record = self._begin(payload, body_bytes(body))
            self._write(record, content.kind, content.step, body, content.digests, content.scalars)

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
                held.record.abort()

    def _require_sound(self) -> None:
        """Refuse further records once another thread has lost the record of a step."""
        if self._failure is not None:
            raise LogUnavailable(error_text(self._failure)) from self._failure

    def _require_step(self, content: RecordContent, step: int) -> None:
        """Refuse a record after a step whose record was lost: redo would not reach the state that it tells of."""
        self._require_sound()
        if content.step != step:
            raise LogUnavailable(f"a record of step {content.step} cannot follow one of step {self._step}: a record was lost")

    def _commit(self, record: StepRecord, content: RecordContent) -> None:
        self._require_step(content, self._step + 1)
        body = encode_body(self._log.encoder, content)
        if type(content.body) is not tree.Fixed:
            body = {name: copy_part(part) for name, part in body.items()}
        self._hold(record)
        self._held = _HeldStep(record, content.step, body, content.digests)
        self._step = content.step

    def _close_step(self) -> None:
        self._require_sound()
        held, self._held = self._held, None
        if held is not None:
            self._write(held.record, EntryKind.STEP, held.step, held.body, held.digests, None)

    @abstractmethod
    def _begin(self, payload: Payload, more: int = 0) -> StepRecord:
        """Start a record, which may need `more` bytes besides its payload."""

    @abstractmethod
    def _hold(self, record: StepRecord) -> None:
        """Return when the memory of a record's payload may change."""

    @abstractmethod
    def _has_room(self, record: StepRecord, more: int) -> bool:
        """Return True if a record can have `more` further bytes."""

    @abstractmethod
    def _write(
        self, record: StepRecord, kind: EntryKind, step: int, body: EncodedBody, digests: bytes, scalars: Scalars | None
    ) -> None:
        """Finish a record."""


class DirectWriter(LogWriter):
    """Writes records on the training thread. The log writes a large payload in another thread while the optimizer steps."""

    def _begin(self, payload: Payload, more: int = 0) -> StepRecord:
        return self._log.begin(payload, more)

    def _hold(self, record: StepRecord) -> None:
        assert isinstance(record, RecordWriter)
        record.hold()

    def _has_room(self, record: StepRecord, more: int) -> bool:
        assert isinstance(record, RecordWriter)
        return self._log.has_room(record, more)

    def _write(
        self, record: StepRecord, kind: EntryKind, step: int, body: EncodedBody, digests: bytes, scalars: Scalars | None
    ) -> None:
        assert isinstance(record, RecordWriter)
        self._log.commit(record, kind, step, body, digests, scalars)


class QueuedWriter(LogWriter):
    """Writes records in the thread of a `WriterThread`. After a job has failed, further records are refused."""

    def __init__(self, log: WriteAheadLog, writer_thread: WriterThread) -> None:
        super().__init__(log)
        self._writer_thread = writer_thread

    def _begin(self, payload: Payload, more: int = 0) -> StepRecord:
        return QueuedRecord(copy_payload(self._writer_thread.pool, payload))

    def _hold(self, record: StepRecord) -> None:
        """Return at once: the payload is a copy."""

    def _has_room(self, record: StepRecord, more: int) -> bool:
        return True

    def _write(
        self, record: StepRecord, kind: EntryKind, step: int, body: EncodedBody, digests: bytes, scalars: Scalars | None
    ) -> None:
        """Queue a record with copies of its large arrays."""
        assert isinstance(record, QueuedRecord)
        writer_thread, log, pool, payload = self._writer_thread, self._log, self._writer_thread.pool, record.payload
        try:
            if writer_thread.failure is not None:
                raise LogUnavailable(error_text(writer_thread.failure)) from writer_thread.failure
            body_parts = {name: copy_part(part, pool.copy) for name, part in body.items()}
        except BaseException:
            record.abort()
            raise
        copies = [array for part in body_parts.values() for array in part.arrays]
        nbytes = payload.nbytes + sum(array.nbytes for array in copies)
        record.is_open = False

        def job() -> None:
            log.append(kind, step, payload, body_parts, digests, scalars)
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


def copy_part(part: Part, copy: Callable[[Array], Array] = lambda array: replace(array, data=array.data.copy())) -> Part:
    """Return the part with copies of its large arrays; the part itself if it has none."""
    return Part(part.blob, [copy(array) for array in part.arrays]) if part.arrays else part


class BufferPool:
    """Buffers that are reused for arrays of the same size, because new memory costs more than the copy.

    Free and used buffers together never exceed the most bytes that were in use at once. Buffers of sizes that are not asked
    for again (sparse gradients) are dropped for others.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}  # by size, the least recently used first
        self._free_bytes = self._used_bytes = self._used_bytes_max = 0
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes of the free buffers."""
        return self._free_bytes

    def copy(self, array: Array) -> Array:
        """Return a copy of an array in a pooled buffer."""
        with self._lock:
            self._used_bytes += array.nbytes
            self._used_bytes_max = max(self._used_bytes_max, self._used_bytes)
            buffer = self._pop(array.nbytes) if array.nbytes in self._free else None
        if buffer is None:
            buffer = np.empty(array.nbytes, np.uint8)
        np.copyto(buffer, array.data)
        return replace(array, data=buffer)

    def give_back(self, array: Array) -> None:
        """Return the buffer of a copy that is no longer needed to the pool."""
        with self._lock:
            same = self._free.pop(array.nbytes, [])
            same.append(array.data)
            self._free[array.nbytes] = same
            self._free_bytes += array.nbytes
            self._used_bytes -= array.nbytes
            while self._free_bytes + self._used_bytes > self._used_bytes_max:
                self._pop(next(iter(self._free)))

    def _pop(self, nbytes: int) -> Bytes:
        buffers = self._free[nbytes]
        buffer = buffers.pop()
        if not buffers:
            del self._free[nbytes]
        self._free_bytes -= nbytes
        return buffer


class WriterThread:
    """Runs jobs in order in one thread. After a job has failed, later ones are dropped until `reset`.

    Args:
        bytes_max: a bound on the data of queued jobs.

    Attributes:
        pool: buffers for the data of jobs. A job returns its buffers.
        failure: the error of the job that failed; None if none did.
    """

    def __init__(self, bytes_max: int) -> None:
        self.pool = BufferPool()
        self._bytes_max = bytes_max
        self._jobs: deque[tuple[int, Callable[[], None]]] = deque()
        self._changed = WaitableLock()
        self._queued_bytes = 0
        self._is_running = self._is_stopped = False
        self.failure: BaseException | None = None
        self._thread = start_thread("tranlogs-writer", self._work)

    def submit(self, nbytes: int, job: Callable[[], None]) -> None:
        """Queue a job that holds `nbytes` of copies. Wait while the queue is full."""
        with self._changed:
            while self._is_full_for(nbytes):
                self._changed.wait()
            self._jobs.append((nbytes, job))
            self._queued_bytes += nbytes
            self._changed.notify_all()

    def _is_full_for(self, nbytes: int) -> bool:
        if len(self._jobs) >= QUEUE_JOBS_MAX:  # Tiny steps never fill the queue by bytes, and a crash loses queued jobs.
            return True
        return self._queued_bytes > 0 and self._queued_bytes + nbytes > self._bytes_max

    def drain(self) -> None:
        """Wait until every job has run."""
        with self._changed:
            while self._jobs or self._is_running:
                self._changed.wait()

    def reset(self) -> BaseException | None:
        """Drain the queue, clear the failure, and return it."""
        self.drain()
        failure, self.failure = self.failure, None
        if failure is not None:
            self.pool = BufferPool()  # Jobs that were dropped have not returned their buffers.
        return failure

    def stop(self) -> None:
        """Drain the queue and end the thread."""
        self.drain()
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._is_stopped:
                    self._changed.wait()
                if not self._jobs:
                    return
                nbytes, job = self._jobs.popleft()
                self._is_running = True
            try:
                if self.failure is None:
                    job()
            except Exception as error:
                self.failure = error
            with self._changed:
                self._queued_bytes -= nbytes
                self._is_running = False
                self._changed.notify_all()
