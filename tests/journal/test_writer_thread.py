"""Threads beside training: one that writes what is handed over, in order and bounded; the gate before one that ends it all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.bare_log import BareLog
from tests.support.waiting import wait_until
from tranlogs.base.config import QUEUE_JOBS_MAX
from tranlogs.base.threads import ShutdownGate, gated
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


# The gate


class Gated:
    def __init__(self) -> None:
        self.gate = ShutdownGate()

    @gated
    def pass_through(self, do: Callable[[], object] = lambda: None) -> object:
        return do()


def in_thread(do: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    return thread


def test_who_shuts_waits_for_the_call_inside_and_nobody_enters_afterwards() -> None:
    thing, may_go, has_left = Gated(), threading.Event(), threading.Event()

    def train() -> None:
        thing.pass_through(may_go.wait)
        has_left.set()
        thing.pass_through()  # waits forever

    thread = in_thread(train)
    wait_until(lambda: thing.gate.depth, "inside")
    assert not thing.gate.shut(0.05)
    thing.pass_through()  # The thread that has shut it may enter.
    may_go.set()
    assert thing.gate.shut(10)
    assert has_left.wait(10)
    thread.join(0.2)
    assert thread.is_alive()
    assert thing.gate.depth == 0
