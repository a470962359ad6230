"""Records handed to a writer thread: order, back-pressure, failures that latch, memory that is bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tranlogs.config import QUEUE_JOBS_MAX
from tranlogs.journal.handover import BufferPool, HandOver
from tranlogs.journal.writers import QueuedRecord, wait_for
from tranlogs.types import Array, SparseArray, Staged, dense


@pytest.fixture
def handover() -> Iterator[HandOver]:
    made = HandOver(1000)
    yield made
    made.stop()


def values(size: int, fill: int = 0) -> Array:
    return dense(np.full(size, fill, np.uint8))


def test_jobs_run_in_order_in_one_thread(handover: HandOver) -> None:
    ran: list[tuple[int, int]] = []
    for i in range(200):
        handover.submit(10, lambda i=i: ran.append((i, threading.get_ident())))
    handover.drain()
    assert [i for i, _ in ran] == list(range(200))
    assert len({thread for _, thread in ran} | {threading.get_ident()}) == 2


def test_a_full_queue_makes_the_training_thread_wait(handover: HandOver) -> None:
    gate, ran = threading.Event(), []
    handover.submit(600, gate.wait)
    handover.submit(300, lambda: ran.append(1))
    waiting = threading.Thread(target=handover.submit, args=(200, lambda: ran.append(2)))
    waiting.start()
    with handover._changed:
        assert handover._queued == 900
    gate.set()
    waiting.join()
    handover.drain()
    assert ran == [1, 2]


def test_a_queue_of_tiny_jobs_is_bounded_in_their_number(handover: HandOver) -> None:
    gate, started = threading.Event(), threading.Event()
    handover.submit(0, lambda: (started.set(), gate.wait()))
    started.wait()
    for _ in range(QUEUE_JOBS_MAX):
        handover.submit(0, lambda: None)
    waiting = threading.Thread(target=handover.submit, args=(0, lambda: None))
    waiting.start()
    waiting.join(0.05)  # a queue without a bound would have taken it at once
    assert waiting.is_alive()
    gate.set()
    waiting.join()
    handover.drain()


def test_a_job_larger_than_the_queue_is_taken_alone(handover: HandOver) -> None:
    ran: list[int] = []
    handover.submit(100, lambda: ran.append(1))
    handover.submit(5000, lambda: ran.append(2))
    handover.submit(5000, lambda: ran.append(3))
    handover.drain()
    assert ran == [1, 2, 3]


def fail() -> None:
    raise OSError(5, "the disk fails")


def test_a_failed_job_latches_and_later_ones_are_dropped_until_reset(handover: HandOver) -> None:
    ran: list[int] = []
    handover.submit(10, lambda: ran.append(1))
    handover.submit(10, fail)
    handover.submit(10, lambda: ran.append(2))
    handover.drain()
    assert ran == [1]
    assert isinstance(handover.failure, OSError)
    assert isinstance(handover.reset(), OSError)
    assert handover.reset() is None
    handover.submit(10, lambda: ran.append(3))
    handover.drain()
    assert ran == [1, 3]


def test_stop_runs_what_is_queued() -> None:
    handover, ran = HandOver(1000), []
    for i in range(50):
        handover.submit(10, lambda i=i: ran.append(i))
    handover.stop()
    assert ran == list(range(50))


def test_a_copy_does_not_follow_its_source() -> None:
    source = np.arange(8, dtype=np.uint8)
    copy = BufferPool().copy(dense(source))
    source[:] = 0
    assert copy.data.tolist() == list(range(8))


def test_buffers_are_used_again() -> None:
    pool = BufferPool()
    first = pool.copy(values(100))
    pool.give_back(first)
    again, other = pool.copy(values(100)), pool.copy(values(100))
    assert again.data is first.data
    assert other.data is not first.data


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


def test_a_record_copies_when_it_is_given_and_an_aborted_one_gives_back(handover: HandOver) -> None:
    source = np.ones(64, np.uint8)
    indices = dense(np.arange(4).reshape(1, 4))
    record = QueuedRecord(handover)
    record.add("w", dense(source))
    record.add("none", None)
    record.add("sparse", SparseArray((9, 64), indices, dense(source.reshape(4, 16)), True))
    source[:] = 2
    (_, first), (_, none), (_, sparse) = record.tensors
    assert isinstance(first, Array)
    assert isinstance(sparse, SparseArray)
    assert none is None
    assert (first.data == 1).all()
    assert (sparse.values.data == 1).all()
    assert sparse.is_coalesced
    record.abort()
    assert (record.is_open, record.tensors) == (False, [])
    assert handover.pool.free_bytes == 64 + 64 + 32


def test_arrays_on_their_way_are_neither_copied_nor_pooled(handover: HandOver) -> None:
    there: list[str] = []
    array = Staged("uint8", (4,), np.zeros(4, np.uint8), arrived=lambda: there.append("arrived"))
    record = QueuedRecord(handover)
    record.add("grad/w", array)
    assert record.tensors == [("grad/w", array)]
    assert there == []
    wait_for([array, values(3), None])
    assert there == ["arrived"]
    record.abort()
    assert handover.pool.free_bytes == 0
