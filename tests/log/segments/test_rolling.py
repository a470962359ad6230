"""Segments roll by size and by age."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log.entries import expected
from tests.support.bare_log import BareLog, append_step, expected_step
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.log.writer import WriteAheadLog


def test_segments_roll_before_they_are_full(bare: BareLog) -> None:
    log, size = bare.open(), 60_000
    for step in range(1, 60):
        append_step(log, step, size)
    log.close()
    assert len(bare.links()) == 118
    assert bare.contents() == expected(range(1, 60), size)
    assert bare.catalog is not None
    rows = bare.catalog.segments()
    assert len(rows) > 2
    assert {row.state for row in rows} == {"sealed"}
    assert all(row.used_bytes <= row.size == (bare.folder / "log" / row.file).stat().st_size for row in rows)
    assert rows[-1].used_bytes == rows[-1].size  # `close` gives back what the last one does not need


def test_an_entry_larger_than_a_segment_gets_a_larger_segment(bare: BareLog) -> None:
    log = bare.open()
    append_step(log, 1)
    append_step(log, 2, 500_000)
    append_step(log, 3)
    log.close()
    assert bare.contents() == expected_step(1) + expected_step(2, 500_000) + expected_step(3)


def test_a_segment_rolls_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The thread behind the log seals old segments too, whenever it wakes up: tests/log/segments/test_segment_age.py.
    monkeypatch.setattr(WriteAheadLog, "_seal_old", lambda log: None)
    bare = BareLog(tmp_path, JournalConfig(durability="process", segment_bytes=MIB, segment_age_seconds=10.0))
    log = bare.open()
    for step in range(1, 7):
        append_step(log, step)
        bare.clock.advance(6.0)  # type: ignore[attr-defined]
    log.close()
    ordinals = [link.segment.row.ordinal for link in bare.links()]
    assert [ordinals.count(ordinal) for ordinal in sorted(set(ordinals))] == [6, 6]
    assert bare.contents() == expected(range(1, 7))
    bare.close()


@pytest.mark.parametrize("segment_bytes", [MIB, MIB + 1, 3_333_333])
def test_a_segment_of_any_size_works(tmp_path: Path, segment_bytes: int) -> None:
    bare = BareLog(tmp_path, JournalConfig(durability="machine", segment_bytes=segment_bytes))
    log = bare.open()
    for step in range(1, 30):
        append_step(log, step, 30_000)
    log.close()
    assert bare.contents() == expected(range(1, 30), 30_000)
    bare.close()
