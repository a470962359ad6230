"""Segments are sealed by age: as configured, or as long as somebody asks for it, while entries go on being written or not."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support.bare_log import BareLog
from tests.support.clock import FakeClock
from tests.support.faults import failing
from tranlogs.base.clock import Clock
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import LogUnavailable
from tranlogs.base.types import Array, dense
from tranlogs.journal.record_writers import LogWriter, RecordContent
from tranlogs.log import group_commit, writer
from tranlogs.log.layout import NO_TENSORS, Payload
from tranlogs.log.record_format import EntryKind
from tranlogs.log.writer import SegmentAgeLimit, WriteAheadLog
from tranlogs.log.writer_thread import WriterThread

DATA = dense(np.arange(5000, dtype=np.float32))


@pytest.fixture(autouse=True)
def looked_at_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CATALOG_SECONDS", 0.0)
    monkeypatch.setattr(group_commit, "CATALOG_SECONDS", 0.001)


def ask(bare: BareLog, age: float, until: float) -> None:
    assert bare.catalog is not None
    with bare.catalog.transaction() as tables:
        tables.put_request("seal", {"age_seconds": age, "until": until})


def test_a_request_holds_until_it_lapses(tmp_path: Path) -> None:
    bare = BareLog(tmp_path)
    bare.open().close()
    assert bare.catalog is not None
    clock = FakeClock()
    found = SegmentAgeLimit(bare.catalog, clock, None)
    found.read_request()
    assert found.age_seconds is None
    ask(bare, 10.0, clock.now() + 60)
    found.read_request()
    assert found.age_seconds == 10.0
    clock.advance(61)
    found.read_request()
    assert found.age_seconds is None
    bare.close()


def test_the_shorter_of_setting_and_request_holds(tmp_path: Path) -> None:
    bare = BareLog(tmp_path)
    bare.open().close()
    assert bare.catalog is not None
    clock = FakeClock()
    found = SegmentAgeLimit(bare.catalog, clock, 30.0)
    ask(bare, 10.0, clock.now() + 60)
    found.read_request()
    assert found.age_seconds == 10.0
    ask(bare, 100.0, clock.now() + 60)
    found.read_request()
    assert found.age_seconds == 30.0
    bare.close()


@pytest.mark.parametrize(
    "request_", [{"age_seconds": "soon", "until": 1e12}, {"until": 1e12}, {"age_seconds": -1.0, "until": 1e12}]
)
def test_a_request_that_makes_no_sense_is_none(tmp_path: Path, request_: dict[str, object]) -> None:
    bare = BareLog(tmp_path)
    bare.open().close()
    assert bare.catalog is not None
    with bare.catalog.transaction() as tables:
        tables.put_request("seal", request_)
    found = SegmentAgeLimit(bare.catalog, FakeClock(), None)
    found.read_request()
    assert found.age_seconds is None
    bare.close()


def sealed(bare: BareLog) -> int:
    assert bare.catalog is not None
    return sum(row.state == "sealed" for row in bare.catalog.segments())


def test_nothing_is_sealed_where_nothing_was_written(tmp_path: Path) -> None:
    bare = BareLog(tmp_path, clock=Clock())
    made = bare.open()
    ask(bare, 0.001, Clock().now() + 60)
    made.append(EntryKind.BOUNDARY, 1, Payload.of([("a", DATA)]), {})
    wait_until(lambda: sealed(bare) == 1)
    for _ in range(50):
        threading.Event().wait(0.002)
    assert sealed(bare) == 1, "an empty segment is not sealed, and none is opened before it is needed"
    made.close()
    bare.close()


def wait_until(is_so) -> None:  # type: ignore[no-untyped-def]
    for _ in range(5000):
        if is_so():
            return
        threading.Event().wait(0.002)
    raise AssertionError("it does not come")


@contextmanager
def sealing(log: WriteAheadLog, seal: Callable[[], None]) -> Iterator[None]:
    """Let a second thread seal at every moment."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            seal()
            with log._lock:
                log._lock.notify_all()

    sealer = threading.Thread(target=work)
    sealer.start()
    try:
        yield
    finally:
        done.set()
        sealer.join()


def test_sealing_from_behind_loses_no_entry_that_is_being_written(tmp_path: Path) -> None:
    """One thread appends, the one behind it seals at every moment in between."""
    bare = BareLog(tmp_path, config=JournalConfig(durability="process", segment_bytes=MIB), clock=Clock())
    made = bare.open()
    ask(bare, 1e-9, Clock().now() + 600)
    with sealing(made, made._seal_old):
        for step in range(1, 201):
            made.append(EntryKind.STEP, step, Payload.of([("a", DATA)]), made.encoder.whole({"n": step}, None))
            made.append(EntryKind.BOUNDARY, step, NO_TENSORS, made.encoder.parts({"n": step}, None))
    made.close()
    found = [(link.kind, link.step) for link in bare.links() if link.kind in (EntryKind.STEP, EntryKind.BOUNDARY)]
    assert found == [(kind, step) for step in range(1, 201) for kind in (EntryKind.STEP, EntryKind.BOUNDARY)]
    assert sealed(bare) > 20
    bare.close()


def test_segments_that_are_sealed_early_become_small_and_grow_again(tmp_path: Path) -> None:
    bare = BareLog(tmp_path, config=JournalConfig(durability="process", segment_bytes=16 * MIB), clock=Clock())
    made = bare.open()
    ask(bare, 1e-9, Clock().now() + 600)
    for step in range(1, 8):
        made.append(EntryKind.STEP, step, Payload.of([("a", DATA)]), made.encoder.whole({}, None))
        made.append(EntryKind.BOUNDARY, step, NO_TENSORS, made.encoder.parts({}, None))
        wait_until(lambda step=step: sealed(bare) >= step)
    assert bare.catalog is not None
    small = [row for row in bare.catalog.segments() if row.state == "sealed"][-1]
    assert small.size < 16 * MIB
    ask(bare, 1.0, 0.0)
    large = dense(np.random.default_rng(0).integers(0, 256, MIB, np.uint8))
    for step in itertools.count(8):  # when the request's end is seen is up to the clock
        made.append(EntryKind.STEP, step, Payload.of([("a", large)]), made.encoder.whole({}, None))
        made.append(EntryKind.BOUNDARY, step, NO_TENSORS, made.encoder.parts({}, None))
        if any(row.size >= 16 * MIB for row in bare.catalog.segments() if row.ordinal > small.ordinal):
            break
        assert step < 1000, "they do not grow"
    made.close()
    bare.close()


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_step_that_waits_for_its_boundary_is_closed_and_its_segment_sealed(tmp_path: Path, is_queued: bool) -> None:
    """A long evaluation between a step and the end of its unit does not hold up whoever waits for the segment."""
    bare = BareLog(tmp_path, clock=Clock())
    made, thread = bare.open(), WriterThread(1 << 20)
    written = LogWriter(made, thread if is_queued else None)
    buffer = DATA.data.copy()
    written.append(NO_TENSORS, RecordContent(EntryKind.BOUNDARY, 0, {"n": 0}))
    record = written.begin(Payload.of([("a", Array("float32", (5000,), buffer))]))
    written.commit(record, RecordContent(EntryKind.STEP, 1, {"n": 1}))
    buffer[:] = 0  # the training goes on
    ask(bare, 0.001, Clock().now() + 60)
    wait_until(lambda: sealed(bare) == 1)
    assert not record.is_open
    written.append(NO_TENSORS, RecordContent(EntryKind.BOUNDARY, 1, {"n": 1}))
    thread.stop()
    made.close()
    assert bare.contents() == [
        (EntryKind.BOUNDARY, 0, {}, {"n": 0}),
        (EntryKind.STEP, 1, {"a": DATA.data.tobytes()}, {"n": 1}),
        (EntryKind.BOUNDARY, 1, {}, {"n": 1}),
    ]
    bare.close()


def test_a_step_that_cannot_be_closed_ends_the_log_at_the_next_record(tmp_path: Path) -> None:
    bare = BareLog(tmp_path, clock=Clock())
    made = bare.open()
    written = LogWriter(made)
    written.append(Payload.of([("a", DATA)]), RecordContent(EntryKind.STEP, 1, {}))
    with failing("log.before_commit=enospc"):
        ask(bare, 0.001, Clock().now() + 60)
        wait_until(lambda: made.group.failure is not None)
    with pytest.raises(LogUnavailable, match=r"log\.before_commit"):
        written.append(NO_TENSORS, RecordContent(EntryKind.BOUNDARY, 1, {}))
    written.stop()
    with pytest.raises(LogUnavailable):
        made.close()
    bare.close()


def test_steps_that_are_closed_from_behind_are_in_order(tmp_path: Path) -> None:
    """One thread trains, another one closes the step and seals at every moment in between."""
    bare = BareLog(tmp_path, config=JournalConfig(durability="process", segment_bytes=MIB), clock=Clock())
    made = bare.open()
    written = LogWriter(made)
    with sealing(made, made.seal_now):
        for step in range(1, 201):
            record = written.begin(Payload.of([("a", DATA)]))
            written.commit(record, RecordContent(EntryKind.STEP, step, {"n": step}))
            if step % 3 == 0:
                threading.Event().wait(0.001)
            written.append(NO_TENSORS, RecordContent(EntryKind.BOUNDARY, step, {"n": -step}))
    written.stop()
    made.close()
    ends = [link for link in bare.links() if link.kind.is_boundary]
    assert [link.step for link in ends] == list(range(1, 201))
    steps = [link.step for link in bare.links() if link.kind in (EntryKind.STEP, EntryKind.UNIT)]
    assert steps == list(range(1, 201)), "each step once, whether it has its boundary or not"
    assert {EntryKind.STEP, EntryKind.BOUNDARY} <= {link.kind for link in bare.links()}
