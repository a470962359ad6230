"""The write-ahead log: what is committed is found, what is not is not, and failures latch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.log.entries import ONES, expected, whole
from tests.support.bare_log import BareLog, append_step
from tests.support.faults import failing
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import LogUnavailable, UnencodableState
from tranlogs.catalog import SegmentRow, Tables
from tranlogs.log.layout import NO_TENSORS
from tranlogs.log.record_format import EntryKind, Position
from tranlogs.log.segment_file import SegmentFile


def test_a_segment_is_closed_before_the_catalog_calls_it_sealed(bare: BareLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on it may be retired, and its file made a new segment, by other threads."""
    closed, sealed = set[str](), list[tuple[str, bool]]()
    close, put = SegmentFile.close, Tables.put

    def closing(segment: SegmentFile) -> None:
        close(segment)
        closed.add(segment.path.name)

    def putting(tables: Tables, key: str, row: object) -> None:
        if isinstance(row, SegmentRow) and row.state == "sealed":
            sealed.append((row.file, row.file in closed))
        put(tables, key, row)

    monkeypatch.setattr(SegmentFile, "close", closing)
    monkeypatch.setattr(Tables, "put", putting)
    log = bare.open()
    append_step(log, 1)
    log.roll()
    append_step(log, 2)
    log.close()
    assert [was_closed for _, was_closed in sealed] == [True, True]


def test_what_was_appended_is_found_in_order(bare: BareLog) -> None:
    log = bare.open()
    for step in range(1, 40):
        append_step(log, step)
    log.close()
    assert bare.contents() == expected(range(1, 40))


def test_an_open_segment_is_readable_beside_the_writer(bare: BareLog) -> None:
    log = bare.open()
    for step in range(1, 6):
        append_step(log, step)
        assert bare.contents() == expected(range(1, step + 1))
    log.close()


def test_a_clean_close_seals_and_syncs_everything(tmp_path: Path) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=MIB))
    log = bare.open()
    append_step(log, 1)
    log.close()
    assert bare.catalog is not None
    assert [(row.state, row.last_sequence) for row in bare.catalog.segments()] == [("sealed", 2)]
    assert (bare.catalog.watermarks().committed, bare.catalog.watermarks().synced) == (1, 1)
    bare.close()


def test_an_entry_that_is_not_committed_leaves_no_trace(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    writer = log.begin(ONES)
    writer.wait()
    writer.abort()
    assert not writer.is_open
    writer = log.begin(ONES)
    writer.wait()
    append_step(log, 2)  # another record begins: the open one is dropped, and overwritten
    assert not writer.is_open
    log.close()
    assert bare.contents() == expected(range(1, 3))


def test_closing_drops_an_open_entry(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    writer = log.begin(ONES)
    writer.wait()
    log.close()
    assert not writer.is_open
    assert bare.contents() == expected(range(1, 2))


def test_the_chain_goes_on_over_segments_and_reopening(bare: BareLog) -> None:
    log = bare.open()
    for step in range(1, 4):
        append_step(log, step)
    position = log.position
    log.close()
    log = bare.open(position)
    append_step(log, 4)
    log.roll()
    append_step(log, 5)
    log.close()
    assert bare.contents() == expected(range(1, 6))
    assert len({link.segment.row.ordinal for link in bare.links()}) == 3


def test_another_chain_is_not_joined(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    position = log.position
    log.close()
    log = bare.open(replace(position, chain=position.chain ^ 1))
    append_step(log, 2)
    log.close()
    assert bare.contents() == expected(range(1, 2))


def test_entries_behind_a_later_base_are_superseded(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    landed = log.position
    append_step(log, 2, size=50, boundary=False)
    log.close()
    log = bare.open(landed)
    append_step(log, 2)
    log.close()
    assert bare.contents() == expected(range(1, 3))


@pytest.mark.parametrize("point", ["log.begin", "log.write", "log.before_commit"])
@pytest.mark.parametrize("error", ["enospc", "eio"])
def test_a_failed_append_leaves_the_log_as_it_was(bare: BareLog, point: str, error: str) -> None:
    log = bare.open()
    append_step(log, 1)
    position = log.position
    with failing(f"{point}={error}"), pytest.raises((LogUnavailable, OSError), match=point):
        append_step(log, 2)
    assert log.position == position
    append_step(log, 2)
    log.close()
    assert bare.contents() == expected(range(1, 3))


def test_watermarks_wait_until_the_log_counts(bare: BareLog) -> None:
    log = bare.open(Position(5, 3, 99), writes_watermarks=False)
    log.begin(NO_TENSORS).abort()
    log.close()
    assert bare.catalog is not None
    assert bare.catalog.watermarks().committed == 0


def test_a_segment_whose_first_entry_fails_can_be_reused(bare: BareLog) -> None:
    log = bare.open()
    with failing("log.before_commit=enospc@1"), pytest.raises(LogUnavailable):
        append_step(log, 1)
    append_step(log, 1)
    log.close()
    assert bare.contents() == expected(range(1, 2))


def test_a_body_that_cannot_be_encoded_is_refused_and_the_log_goes_on(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    record = log.begin(ONES)
    with pytest.raises(UnencodableState, match=r"schedule.*function"):
        log.commit(record, EntryKind.STEP, 2, whole(log, {"schedule": lambda: 1}))
    assert record.is_open
    append_step(log, 2)
    log.close()
    assert bare.contents() == expected(range(1, 3))
