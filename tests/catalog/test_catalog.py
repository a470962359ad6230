"""The catalog: all or nothing, shared by processes, and damage is an error and never a signal."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tranlogs.base.errors import CorruptCatalog, LogUnavailable
from tranlogs.catalog import (
    CATALOG_NAME,
    Catalog,
    CheckpointRow,
    Incident,
    RunRow,
    SegmentRow,
    Tables,
    TimelineRow,
    Watermarks,
    segment_key,
    timeline_key,
)
from tranlogs.catalog import catalog as catalog_module

SEGMENT = SegmentRow(3, f"{255:016x}", "3.seg", 4096, "sealed", 1, 5, 2, 9, 4, 8192, 1.5, 0.5)


@pytest.fixture
def catalog(memory_path: Path) -> Iterator[Catalog]:
    made = Catalog.open(memory_path, writable=True)
    yield made
    made.close()


def elsewhere(folder: Path, code: str) -> str:
    """Run code on the catalog in another process."""
    program = f"from pathlib import Path\nfrom tranlogs.catalog import *\nfolder = Path({str(folder)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def write_watermarks(catalog: Catalog, **changes: Any) -> None:
    """Change some watermarks, as the log and the archiver do."""
    with catalog.transaction() as tables:
        now = tables.get("watermarks", Watermarks) or Watermarks()
        tables.put("watermarks", replace(now, **changes))


def ordinals(tables: Tables) -> list[int]:
    return [row.ordinal for row in tables.rows("segment/", SegmentRow)]


def test_rows_come_back(catalog: Catalog) -> None:
    assert (catalog.run(), catalog.segments(), catalog.checkpoints(), catalog.incidents()) == (None, [], [], [])
    rows = {
        segment_key(3): SEGMENT,
        "checkpoint/a": CheckpointRow("a", 1, 2, "00ff", 1, 10, 3.0, 0.25),
        timeline_key(2): TimelineRow(2, 1, 7, 3, 4.0),
        "incident/000001": Incident(1, "full", 3, 4.0),
        "watermarks": Watermarks(5, 4),
        "run": RunRow("r", 0, 1.0),
    }
    with catalog.transaction() as tables:
        for key, row in rows.items():
            tables.put(key, row)
    assert catalog.read(lambda tables: {key: tables.get(key, type(row)) for key, row in rows.items()}) == rows
    assert catalog.segments() == [SEGMENT]
    assert SEGMENT.number == 255
    assert catalog.timelines() == [rows[timeline_key(2)]]
    assert catalog.incidents() == [rows["incident/000001"]]
    assert (catalog.watermarks().committed, catalog.watermarks().synced) == (5, 4)
    with catalog.transaction() as tables:
        for ordinal in (11, 2, 100, 9):
            tables.put(segment_key(ordinal), SegmentRow(ordinal, "0", "x", 1, "ready"))
        for name, step, state in (("b", 9, "published"), ("c", 5, "published"), ("d", 3, "retired")):
            tables.put(f"checkpoint/{name}", CheckpointRow(name, step, 2 * step, "0", 1, 1, 0.0, state=state))
    assert [row.ordinal for row in catalog.segments()] == [2, 3, 9, 11, 100], "in the order of their numbers"
    assert [row.name for row in catalog.checkpoints()] == ["a", "c", "b"], "by step, without retired ones"


def test_a_reader_that_was_first_becomes_the_writer(memory_path: Path) -> None:
    Catalog.open(memory_path, writable=True).close()
    reader = Catalog.open(memory_path)
    writer = Catalog.open(memory_path, writable=True)
    write_watermarks(writer, committed=4)
    assert reader.watermarks().committed == 4
    reader.close()
    write_watermarks(writer, committed=5)
    writer.close()


def test_processes_killed_while_they_read_do_not_use_up_the_readers(memory_path: Path) -> None:
    """126 fit; their places are given back when a writer opens."""
    catalog = Catalog.open(memory_path, writable=True)
    code = "import os\nenvs = Catalog.open(folder)._env\ntxns = [envs.begin() for _ in range(60)]\nos.kill(os.getpid(), 9)"
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError, match="SIGKILL"):
            elsewhere(memory_path, code)
    writer = (
        "c = Catalog.open(folder, writable=True)\ntxns = [c._env.begin() for _ in range(100)]\nprint(c.watermarks().committed)"
    )
    assert elsewhere(memory_path, writer) == "0"
    catalog.close()


def test_a_missing_catalog_is_corrupt_for_readers_and_made_by_writers(memory_path: Path) -> None:
    with pytest.raises(CorruptCatalog, match=f"{CATALOG_NAME}: the catalog is missing.*tranlogs verify RUN --repair"):
        Catalog.open(memory_path)
    Catalog.open(memory_path, writable=True).close()
    Catalog.open(memory_path).close()


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"x" * 9000], ids=["empty", "zeros", "text"])
@pytest.mark.parametrize("writable", [True, False])
def test_a_file_that_is_no_catalog_is_an_error(memory_path: Path, content: bytes, writable: bool) -> None:
    (memory_path / CATALOG_NAME).write_bytes(content)
    with pytest.raises(CorruptCatalog, match="damaged"):
        Catalog.open(memory_path, writable=writable)


def test_a_catalog_that_cannot_be_written_is_not_damaged(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk must not make anybody rebuild it."""

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tranlogs.catalog.lmdb_environment.allocate_lock_file", full)
    with pytest.raises(LogUnavailable, match="No space left"):
        Catalog.open(memory_path, writable=True)
    assert list(memory_path.iterdir()) == []


def test_rows_of_a_newer_program_lose_only_what_this_one_does_not_know(catalog: Catalog) -> None:
    with catalog.transaction() as tables:
        tables.put_content("watermarks", {"committed": 7, "invented_later": 1})
    assert catalog.watermarks().committed == 7


def test_a_catalog_that_another_thread_reads_is_not_closed_under_it(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "THREAD_SECONDS_MAX", 0.05)
    catalog = Catalog.open(memory_path, writable=True)
    with catalog.transaction() as tables:
        tables.put("run", RunRow("00" * 16, 0, 1.0))
    is_reading, may_end = threading.Event(), threading.Event()

    def look(tables: Tables) -> object:
        is_reading.set()
        assert may_end.wait(30)
        return tables.get("run", RunRow)

    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(catalog.read(look)))
    thread.start()
    assert is_reading.wait(30)
    catalog.close()
    again = Catalog.open(memory_path)
    assert again is catalog  # LMDB allows one environment a file and process
    may_end.set()
    thread.join()
    assert found == [again.run()]
    again.close()
    anew = Catalog.open(memory_path)
    assert anew is not again
    anew.close()


def test_rows_of_a_transaction_that_came_to_nothing_are_not_kept(catalog: Catalog) -> None:
    def fail() -> None:
        with catalog.transaction() as tables:
            tables.put(segment_key(3), SEGMENT)
            assert ordinals(tables) == [3]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert catalog.read(ordinals) == []
    with catalog.transaction() as tables:  # of the same number
        assert ordinals(tables) == []
        tables.put(segment_key(5), replace(SEGMENT, ordinal=5))
    assert catalog.read(ordinals) == [5]


@pytest.mark.parametrize("content", [b"[]", b"{}", b"no JSON", b"\xff"])
def test_a_row_that_is_none_is_damage(catalog: Catalog, content: bytes) -> None:
    """Though its checksum fits."""
    with catalog.transaction() as tables:
        tables.put_value(segment_key(3), content)
    with pytest.raises(CorruptCatalog, match="segment/0000000003"):
        catalog.segments()
