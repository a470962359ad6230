"""Records handed to a writer thread: order, back-pressure, failures that latch, memory that is bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.bare_log import BareLog
from tests.support.faults import failing
from tranlogs.base.config import QUEUE_JOBS_MAX
from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import Array, TensorSpec, dense
from tranlogs.journal.record_writers import LogWriter, RecordContent
from tranlogs.log.layout import Layout, Payload
from tranlogs.log.record_format import RecordKind
from tranlogs.log.writer_thread import BufferPool, WriterThread


@pytest.fixture
def writer_thread() -> Iterator[WriterThread]:
    made = WriterThread(1000)
    yield made
    made.stop()


def values(size: int, fill: int = 0) -> Array:
    return dense(np.full(size, fill, np.uint8))


@pytest.mark.parametrize(("count", "nbytes"), [(1, 901), (QUEUE_JOBS_MAX, 0)])
def test_a_full_queue_makes_the_training_thread_wait(writer_thread: WriterThread, count: int, nbytes: int) -> None:
    """Full by its bytes or by its jobs; a job that is larger than the queue is taken alone."""
    gate, started, ran = threading.Event(), threading.Event(), []
    writer_thread.submit(100, lambda: (started.set(), gate.wait()))
    started.wait()
    for _ in range(count - (nbytes > 0)):
        writer_thread.submit(0, lambda: None)
    waiting = [threading.Thread(target=writer_thread.submit, args=(nbytes or 1, lambda: ran.append(1))) for _ in range(2)]
    for thread in waiting:
        thread.start()
        thread.join(0.05)  # a queue without a bound would have taken it at once
    is_full = waiting[1].is_alive()
    gate.set()
    for thread in waiting:
        thread.join()
    writer_thread.submit(5000, lambda: ran.append(2))
    writer_thread.drain()
    assert is_full
    assert ran == [1, 1, 2]


def fail() -> None:
    raise OSError(5, "the disk fails")


def test_a_failed_job_latches_and_later_ones_are_dropped_until_reset(writer_thread: WriterThread) -> None:
    ran: list[int] = []
    writer_thread.submit(10, lambda: ran.append(1))
    writer_thread.submit(10, fail)
    writer_thread.submit(10, lambda: ran.append(2))
    writer_thread.drain()
    assert ran == [1]
    assert isinstance(writer_thread.failure, OSError)
    assert isinstance(writer_thread.reset(), OSError)
    assert writer_thread.reset() is None
    writer_thread.submit(10, lambda: ran.append(3))
    writer_thread.drain()
    assert ran == [1, 3]


def test_a_pool_holds_no_more_than_was_out_at_once() -> None:
    """As sparse gradients do, whose size is another one at every step."""
    pool = BufferPool()
    for size in range(1000, 3000):
        first, second = pool.copy(values(size)), pool.copy(values(size // 2))
        pool.give_back(first)
        pool.give_back(second)
        assert pool.free_bytes <= size + size // 2
    steady = [pool.copy(values(700, i)) for i in range(4)]
    for array in steady:
        pool.give_back(array)
    assert pool.free_bytes >= 2800
    assert {id(pool.copy(values(700)).data) for _ in range(4)} == {id(array.data) for array in steady}


def test_the_writer_thread_waits_for_a_payload_on_its_way_and_releases_it_after_the_write(
    tmp_path: Path, writer_thread: WriterThread
) -> None:
    bare = BareLog(tmp_path)
    log, gate, order = bare.open(), threading.Event(), []
    writer, buffer = LogWriter(log, writer_thread), np.zeros(4, np.uint8)

    def wait() -> None:
        gate.wait()
        order.append("arrived")

    payload = Payload(
        Layout([TensorSpec("grad/w", "uint8", (4,))]),
        [buffer],
        wait=wait,
        release=lambda: order.append(f"released at {log.position.sequence}"),
    )
    record = writer.begin(payload)
    writer.commit(record, RecordContent(RecordKind.STEP, 1, {"lr": 1}, b"digests"))
    writer.append(Payload.of([]), RecordContent(RecordKind.BOUNDARY, 1, {"n": 1}))
    assert not record.is_open
    assert log.position.sequence == 0  # the training thread waited for nothing
    buffer[:] = [1, 2, 3, 4]
    gate.set()
    writer_thread.drain()
    assert order == ["arrived", "released at 1"]
    log.close()
    assert bare.contents() == [
        (RecordKind.STEP, 1, {"grad/w": bytes([1, 2, 3, 4])}, {"lr": 1}),
        (RecordKind.BOUNDARY, 1, {}, {"n": 1}),
    ]
    bare.close()


def test_what_a_queued_body_refers_to_may_change(tmp_path: Path, writer_thread: WriterThread) -> None:
    bare = BareLog(tmp_path)
    log, gate = bare.open(), threading.Event()
    writer, far = LogWriter(log, writer_thread), np.arange(5000)
    writer_thread.submit(0, gate.wait)
    values = np.ones(3)
    content = RecordContent(RecordKind.BOUNDARY, 0, {"ema": far}, scalars={"loss": 1.0})
    writer.append(Payload.of([("w", dense(values))]), content)
    far[:] = 0
    values[:] = 0
    gate.set()
    writer_thread.drain()
    log.close()
    ((_, _, tensors, body),) = bare.contents()
    assert tensors == {"w": np.ones(3).tobytes()}
    assert np.array_equal(body["ema"], np.arange(5000))
    assert writer_thread.pool.free_bytes == 24 + 40_000
    bare.close()


def test_a_failed_write_refuses_what_comes_after_it(tmp_path: Path, writer_thread: WriterThread) -> None:
    bare = BareLog(tmp_path)
    log = bare.open()
    writer = LogWriter(log, writer_thread)
    with failing("log.before_commit=enospc"):
        writer.append(Payload.of([]), RecordContent(RecordKind.BOUNDARY, 0, {}))
        writer_thread.drain()
    record = writer.begin(Payload.of([("w", values(64))]))
    writer.commit(record, RecordContent(RecordKind.STEP, 1, {}))
    with pytest.raises(LogUnavailable, match=r"log\.before_commit"):
        writer.append(Payload.of([]), RecordContent(RecordKind.BOUNDARY, 1, {}))
    assert not record.is_open
    writer_thread.reset()
    log.close()
    bare.close()


@pytest.mark.parametrize(
    ("kind", "step"),
    [(RecordKind.BOUNDARY, 1), (RecordKind.BOUNDARY, 3), (RecordKind.IMAGE, 1), (RecordKind.STEP, 2), (RecordKind.STEP, 4)],
)
def test_a_record_that_does_not_follow_the_last_step_is_refused(tmp_path: Path, kind: RecordKind, step: int) -> None:
    """Redo would not reach the state that it tells of."""
    bare = BareLog(tmp_path)
    log = bare.open()
    writer = LogWriter(log)
    for n in (1, 2):
        writer.append(Payload.of([]), RecordContent(RecordKind.STEP, n, {}))
    with pytest.raises(LogUnavailable, match=f"a record of step {step} cannot follow one of step 2"):
        writer.append(Payload.of([]), RecordContent(kind, step, {}))
    writer.append(Payload.of([]), RecordContent(RecordKind.BOUNDARY, 2, {}))
    writer.stop()
    log.close()
    assert [(kind, step) for kind, step, _, _ in bare.contents()] == [
        *((RecordKind.STEP, n) for n in (1, 2)),
        (RecordKind.BOUNDARY, 2),
    ]
    bare.close()
