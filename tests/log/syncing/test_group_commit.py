"""What is synced when: segments before their rows in the catalog, the watermark last, and never more than was synced."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.log.entries import expected
from tests.support.bare_log import BareLog, append_step
from tests.support.faults import failing
from tranlogs.base.clock import Clock
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import CatalogUnavailable, LogUnavailable
from tranlogs.log import group_commit
from tranlogs.log.group_commit import GroupCommit
from tranlogs.log.layout import NO_TENSORS
from tranlogs.log.record_format import EntryKind, unpack_head
from tranlogs.log.segment_file import SegmentFile
from tranlogs.log.writer import WriteAheadLog


@pytest.mark.parametrize("durability", ["process", "machine"])
def test_a_record_is_there_for_a_scan_as_soon_as_it_is_committed(tmp_path: Path, durability: Any) -> None:
    """And whoever opens the journal sees it, whether the catalog has it or not."""
    bare = BareLog(tmp_path, JournalConfig(durability=durability, segment_bytes=MIB))
    log = bare.open()
    with failing("log.rows=eio"):  # nothing gets into the catalog
        for step in range(1, 20):
            try:
                append_step(log, step)
            except LogUnavailable:  # the sync thread has met the failing transaction
                break
            assert bare.contents() == expected(range(1, step + 1))
        with suppress(LogUnavailable):
            log.close()
    bare.close()


def test_segments_are_synced_before_their_rows_are_committed_and_synced_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log, unsynced, wrong = bare.open(), set[str](), list[str]()
    indexed = set[int]()
    write_head, sync, write = SegmentFile.write_head, SegmentFile.sync, GroupCommit._write

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

    def adding(group: GroupCommit, changes: Any, records: Any, *more: Any, **options: Any) -> None:
        made = [one for one in records if unpack_head(one.head).kind != EntryKind.SEGMENT]  # type: ignore[union-attr]
        wrong.extend(f"record {one.sequence} is not synced" for one in made if f"{number(one)} {one.offset}" in unsynced)
        wrong.extend(f"synced claims record {one.sequence}" for one in made if log.group.synced.sequence >= one.sequence)
        write(group, changes, records, *more, **options)
        indexed.update(one.sequence for one in made)
        wrong.extend(f"synced claims record {one.sequence}" for one in made if log.group.synced.sequence >= one.sequence)

    monkeypatch.setattr(SegmentFile, "write_head", writing)
    monkeypatch.setattr(SegmentFile, "sync", syncing)
    monkeypatch.setattr(GroupCommit, "_write", adding)
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


def test_with_durability_process_nothing_is_synced_until_it_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, synced = BareLog(tmp_path), list[str]()
    sync = os.fdatasync

    def counting(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    log = bare.open()
    append_step(log, 1)
    log._preallocator.stop()  # it syncs the files that it makes
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", counting)
        for step in range(2, 30):
            append_step(log, step)
        assert synced == []
        assert log.group.synced.step == 0
        log.group.demand_sync()
        assert log.group.wait_synced()
        assert log.group.synced.step == 29
        assert log._segment is not None
        assert str(log._segment.path) in synced
    log.close()
    bare.close()


def until(has_come: Callable[[], bool]) -> None:
    """Wait for what a background thread does."""
    end = time.monotonic() + 60
    while not has_come():
        assert time.monotonic() < end
        time.sleep(0.002)


def is_idle(log: WriteAheadLog) -> bool:
    """Whether the sync thread waits, and nothing is left to do."""
    group = log.group
    with log._lock:
        return group._is_waiting and not (group._has_urgent_work or group._must_sync)


@pytest.mark.parametrize("point", ["log.sync", "log.rows", "log.seal", "catalog.before_commit"])
def test_a_failure_behind_the_training_thread_latches(tmp_path: Path, point: str) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log = bare.open()
    append_step(log, 1)
    assert log.group.wait_synced()
    log._preallocator.stop()  # the files that it makes have rows
    until(lambda: is_idle(log))
    if point not in ("log.sync", "log.rows"):  # before: the thread behind may write watermarks to the catalog at any time
        append_step(log, 2)
        assert log.group.wait_synced()
    with failing(f"{point}=eio"):
        if point in ("log.sync", "log.rows"):
            append_step(log, 2)
        log.roll()
        until(lambda: log.group.failure is not None)
        assert log.group.wait_synced() is False
        with pytest.raises(LogUnavailable, match=point):
            log.close()
    with pytest.raises(LogUnavailable, match=point):
        log.begin(NO_TENSORS)
    assert log.group.boundary.step == 2
    assert point not in ("log.sync", "log.rows") or log.group.synced.step == 1
    assert bare.contents() == expected(range(1, 3))
    bare.close()


def test_synced_trails_committed_and_reaches_it(tmp_path: Path) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log = bare.open()
    for step in range(1, 60):
        append_step(log, step)
        assert log.group.synced.step <= log.group.boundary.step == step
    assert log.group.wait_synced()
    assert log.group.synced == log.group.boundary
    log.close()
    bare.close()


def test_synced_never_claims_a_segment_that_was_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync thread looks while `close` hands over the last segment."""
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log, held, flushed, claims = bare.open(), threading.Event(), list[str](), list[tuple[bool, bool]]()
    commit, sync = GroupCommit._commit_group, SegmentFile.sync

    def flushing(segment: SegmentFile) -> None:
        sync(segment)
        flushed.append(segment.path.name)

    def watched(self: GroupCommit) -> bool:
        held.wait()
        before, count = self.synced.sequence, len(flushed)
        is_last = commit(self)
        claims.append((self.synced.sequence > before, len(flushed) > count))
        return is_last

    monkeypatch.setattr(SegmentFile, "sync", flushing)
    monkeypatch.setattr(GroupCommit, "_commit_group", watched)
    append_step(log, 1)
    closing = threading.Thread(target=log.close)
    closing.start()
    held.set()
    closing.join()
    assert log.group.synced.step == 1
    assert all(was_flushed for advances, was_flushed in claims if advances)
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


def test_groups_are_apart_unless_somebody_waits_or_the_log_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log = bare.open()
    append_step(log, 1)
    until(lambda: log.group.synced.step == 1)
    catalog = bare.catalog
    assert catalog is not None
    until(lambda: {row.state for row in catalog.segments()} == {"open", "ready"})  # whose rows are written at once
    monkeypatch.setattr(group_commit, "GROUP_SECONDS", 600.0)  # only now: the first group may hold the segment alone
    append_step(log, 2)
    time.sleep(0.05)
    assert log.group.synced.step == 1
    assert log.group.wait_synced(10.0)
    assert log.group.synced.step == 2
    append_step(log, 3)
    log.close()
    assert bare.contents() == expected(range(1, 4))
    bare.close()


def test_a_waiter_that_gives_up_does_not_make_another_one_wait_for_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB), Clock())
    log, go_on, results, pauses = bare.open(), threading.Event(), dict[str, bool](), list[float]()
    append_step(log, 1)
    until(lambda: log.group.synced.step == 1)
    until(lambda: is_idle(log))
    monkeypatch.setattr(group_commit, "GROUP_SECONDS", 600.0)
    write, wait = GroupCommit._write, log._lock.wait

    def writing(group: GroupCommit, *arguments: Any, **options: Any) -> None:
        go_on.wait()
        write(group, *arguments, **options)

    def waiting(seconds: float) -> bool:
        pauses.append(seconds)
        return bool(wait(seconds))

    def wait_as(name: str, timeout: float) -> None:
        results[name] = log.group.wait_synced(timeout)

    monkeypatch.setattr(GroupCommit, "_write", writing)
    monkeypatch.setattr(log._lock, "wait", waiting)
    patient = threading.Thread(target=wait_as, args=("patient", 60.0))
    append_step(log, 2)
    patient.start()
    wait_as("hasty", 0.05)
    assert results == {"hasty": False}
    pauses.clear()
    append_step(log, 3)  # the patient one waits for this step, too, and it takes another group
    go_on.set()
    patient.join()
    assert results == {"hasty": False, "patient": True}
    assert log.group.synced.step == 3
    assert max(pauses) < 1.0
    log.close()
    bare.close()


def test_records_that_wait_for_the_catalog_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    is_held, go_on, write = threading.Event(), threading.Event(), GroupCommit._write

    def writing(group: GroupCommit, *arguments: Any, **options: Any) -> None:
        is_held.set()
        go_on.wait()
        write(group, *arguments, **options)

    monkeypatch.setattr(GroupCommit, "_write", writing)
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
