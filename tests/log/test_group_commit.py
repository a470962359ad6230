"""What is synced and sealed when: segments before their rows in the catalog, the watermark last."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.bare_log import BareLog, append_step, expected
from tests.support.clock import FakeClock
from tests.support.waiting import wait_until
from tranlogs.base.clock import Clock
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import CatalogUnavailable
from tranlogs.base.types import Array, dense
from tranlogs.journal.record_writers import LogWriter, RecordContent
from tranlogs.log import group_commit, writer
from tranlogs.log.group_commit import GroupRows
from tranlogs.log.layout import NO_TENSORS, Payload
from tranlogs.log.record_format import RecordKind, unpack_head
from tranlogs.log.segment_file import SegmentFile
from tranlogs.log.writer import SegmentAgeLimit, WriteAheadLog
from tranlogs.log.writer_thread import WriterThread


def test_segments_are_synced_before_their_rows_are_committed_and_synced_comes_last(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = BareLog(memory_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log, unsynced, wrong = bare.open(), set[str](), list[str]()
    indexed = set[int]()
    write_head, sync, write = SegmentFile.write_head, SegmentFile.sync, GroupRows.write

    def number(record: Any) -> str:
        head = unpack_head(record.head)
        assert head is not None
        return f"{head.segment_id:x}"

    def writing(segment: SegmentFile, head: bytes, offset: int) -> None:
        write_head(segment, head, offset)
        unsynced.add(f"{segment.segment_id:x} {offset}")

    def syncing(segment: SegmentFile) -> None:
        before = {key for key in unsynced if key.startswith(f"{segment.segment_id:x} ")}
        sync(segment)
        unsynced.difference_update(before)

    def adding(rows: GroupRows, changes: Any, records: Any, *more: Any, **options: Any) -> None:
        made = [one for one in records if unpack_head(one.head).kind != RecordKind.SEGMENT]  # type: ignore[union-attr]
        wrong.extend(f"record {one.sequence} is not synced" for one in made if f"{number(one)} {one.offset}" in unsynced)
        wrong.extend(f"synced claims record {one.sequence}" for one in made if log.group.synced.sequence >= one.sequence)
        write(rows, changes, records, *more, **options)
        indexed.update(one.sequence for one in made)
        wrong.extend(f"synced claims record {one.sequence}" for one in made if log.group.synced.sequence >= one.sequence)

    monkeypatch.setattr(SegmentFile, "write_head", writing)
    monkeypatch.setattr(SegmentFile, "sync", syncing)
    monkeypatch.setattr(GroupRows, "write", adding)
    for step in range(1, 80):
        append_step(log, step, 3000)
        synced = log.group.synced.sequence
        wrong.extend(f"synced is {synced}" for _ in range(synced not in indexed and synced > 0))
        if step % 20 == 0:
            log.roll()
    assert log.group.wait_synced()
    assert log.group.synced.sequence in indexed
    log.close()
    assert not wrong
    assert indexed >= set(range(1, 159))
    bare.close()


def test_nothing_is_committed_between_the_flush_that_is_demanded_and_the_groups_that_are_synced_behind_it(
    bare: BareLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for synced, and be in no flush."""
    log, here, committed = bare.open(), threading.get_ident(), []
    append_step(log, 1)
    other, flush = threading.Thread(target=append_step, args=(log, 2)), os.fdatasync

    def flushing(fd: int) -> None:
        flush(fd)
        if threading.get_ident() == here and not committed:
            other.start()
            other.join(0.2)
            committed.append(log.group.boundary.step)

    monkeypatch.setattr(os, "fdatasync", flushing)
    log.group.demand_sync()
    other.join()
    assert committed == [1]
    assert log.group.wait_synced()
    assert log.group.synced.step == 2
    log.close()


def test_records_that_wait_for_the_catalog_are_bounded(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = BareLog(memory_path, JournalConfig(durability="machine", segment_bytes=MIB))
    is_held, go_on, write = threading.Event(), threading.Event(), GroupRows.write

    def writing(rows: GroupRows, *arguments: Any, **options: Any) -> None:
        is_held.set()
        go_on.wait()
        write(rows, *arguments, **options)

    monkeypatch.setattr(GroupRows, "write", writing)
    log = bare.open()
    append_step(log, 1)
    is_held.wait()
    append_step(log, 2)
    monkeypatch.setattr(group_commit, "WAITING_RECORDS_MAX", len(log.group._records))
    with pytest.raises(CatalogUnavailable, match="records wait for their rows"):
        append_step(log, 3)
    assert log.group.boundary.step == 2
    go_on.set()
    assert log.group.wait_synced()
    append_step(log, 3)
    log.close()
    assert bare.contents() == expected(range(1, 4))
    bare.close()


DATA = dense(np.arange(5000, dtype=np.float32))


@pytest.fixture
def looked_at_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CATALOG_SECONDS", 0.0)
    monkeypatch.setattr(group_commit, "CATALOG_SECONDS", 0.001)


def ask(bare: BareLog, age: float, until: float) -> None:
    assert bare.catalog is not None
    with bare.catalog.transaction() as tables:
        tables.put_request("seal", {"age_seconds": age, "until": until})


@pytest.mark.parametrize(
    ("setting", "request_", "seconds", "age"),
    [
        (None, {"age_seconds": 10.0, "until": 60.0}, 0, 10.0),
        (None, {"age_seconds": 10.0, "until": 60.0}, 61, None),  # it lapses
        (30.0, {"age_seconds": 100.0, "until": 60.0}, 0, 30.0),
        (None, {"age_seconds": "soon", "until": 1e12}, 0, None),
        (None, {"age_seconds": -1.0, "until": 1e12}, 0, None),
    ],
)
def test_the_shorter_of_setting_and_request_holds(
    memory_path: Path, setting: float | None, request_: dict[str, object], seconds: float, age: float | None
) -> None:
    bare = BareLog(memory_path, clock=FakeClock(0.0))
    bare.open().close()
    assert bare.catalog is not None
    with bare.catalog.transaction() as tables:
        tables.put_request("seal", request_)
    found = SegmentAgeLimit(bare.catalog, clock := FakeClock(0.0), setting)
    found.read_request()
    clock.advance(seconds)
    found.read_request()
    assert found.age_seconds == age
    bare.close()


def sealed(bare: BareLog) -> int:
    """Return the step up to which segments are sealed; -1 if none is. A queued step may come behind a seal."""
    assert bare.catalog is not None
    return max((row.last_step for row in bare.catalog.segments() if row.state == "sealed"), default=-1)


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


@pytest.mark.usefixtures("looked_at_always")
def test_a_step_that_waits_for_its_boundary_is_closed_and_its_segment_sealed(memory_path: Path) -> None:
    """A long evaluation between a step and the end of its unit does not hold up whoever waits for the segment."""
    bare = BareLog(memory_path, clock=Clock())
    made, thread = bare.open(), WriterThread(1 << 20)
    written = LogWriter(made, thread)
    buffer = DATA.data.copy()
    written.append(NO_TENSORS, RecordContent(RecordKind.BOUNDARY, 0, {"n": 0}))
    record = written.begin(Payload.of([("a", Array("float32", (5000,), buffer))]))
    written.commit(record, RecordContent(RecordKind.STEP, 1, {"n": 1}))
    buffer[:] = 0  # the training goes on
    ask(bare, 0.001, Clock().now() + 60)
    wait_until(lambda: sealed(bare) == 1, "sealed")
    assert not record.is_open
    written.append(NO_TENSORS, RecordContent(RecordKind.BOUNDARY, 1, {"n": 1}))
    thread.stop()
    made.close()
    assert bare.contents() == [
        (RecordKind.BOUNDARY, 0, {}, {"n": 0}),
        (RecordKind.STEP, 1, {"a": DATA.data.tobytes()}, {"n": 1}),
        (RecordKind.BOUNDARY, 1, {}, {"n": 1}),
    ]
    bare.close()


@pytest.mark.usefixtures("looked_at_always")
def test_steps_that_are_closed_from_behind_are_in_order(memory_path: Path) -> None:
    """One thread trains, another one closes the step and seals at every moment in between."""
    bare = BareLog(memory_path, config=JournalConfig(durability="process", segment_bytes=MIB), clock=Clock())
    made = bare.open()
    written = LogWriter(made)
    with sealing(made, made.seal_now):
        for step in range(1, 101):
            record = written.begin(Payload.of([("a", DATA)]))
            written.commit(record, RecordContent(RecordKind.STEP, step, {"n": step}))
            if step % 3 == 0:
                threading.Event().wait(0.001)
            written.append(NO_TENSORS, RecordContent(RecordKind.BOUNDARY, step, {"n": -step}))
    written.stop()
    made.close()
    ends = [link for link in bare.links() if link.kind.is_boundary]
    assert [link.step for link in ends] == list(range(1, 101))
    steps = [link.step for link in bare.links() if link.kind in (RecordKind.STEP, RecordKind.UNIT)]
    assert steps == list(range(1, 101)), "each step once, whether it has its boundary or not"
    assert {RecordKind.STEP, RecordKind.BOUNDARY} <= {link.kind for link in bare.links()}
