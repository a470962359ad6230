"""State that grows: a boundary holds what was added, a checkpoint all of it, and recovery puts both together."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.torch.small import logged, one_step, small
from tranlogs.catalog import Catalog
from tranlogs_torch import LoggedOptimizer

ROWS = 20_000  # of an addition: its bytes lie outside of the description of a boundary


class Rows:
    """Rows that are appended."""

    def __init__(self) -> None:
        self.rows = np.zeros((0, 2))
        self._stored = 0

    def append(self, number: int) -> None:
        count = ROWS if number == 5 else 3
        self.rows = np.concatenate([self.rows, np.random.default_rng(number).random((count, 2))])

    def read_added(self) -> Any:
        start, self._stored = self._stored, len(self.rows)
        return {"start": start, "rows": self.rows[start:]}

    def read_whole(self) -> Any:
        return {"start": 0, "rows": self.rows}

    def load_whole(self, whole: Any) -> None:
        self.rows = np.zeros((0, 2))
        self.add(whole)

    def add(self, added: Any) -> None:
        assert added["start"] == len(self.rows)
        self.rows = np.concatenate([self.rows, added["rows"]])
        self._stored = len(self.rows)


def expected(until: int) -> Any:
    rows = Rows()
    for number in range(until):
        rows.append(number)
    return rows.rows


def forget_checkpoints(journal: Path) -> None:
    """Take all checkpoints but the first one out of a run that nobody writes."""
    catalog = Catalog.open(journal, writable=True)
    rows = sorted(catalog.checkpoints(), key=lambda row: row.sequence)[1:]
    with catalog.transaction() as tables:
        for row in rows:
            tables.delete(f"checkpoint/{row.name}")
    catalog.close()
    for row in rows:
        shutil.rmtree(journal / "checkpoints" / row.name)


def begin(run: Path, step: int | None = None, **options: Any) -> tuple[LoggedOptimizer, Rows, Any]:
    model, rows = small(), Rows()
    optimizer = logged(model, run, checkpoint_every=4, keep=100, **options)
    optimizer.training_run.tracking.grow("rows", rows)
    optimizer.recover(step)
    return optimizer, rows, model


def train(run: Path, until: int, step: int | None = None) -> Any:
    """Train, end by a close that takes no checkpoint, and return the rows."""
    optimizer, rows, model = begin(run, step)
    for number in optimizer.steps(until, stateless=True):
        one_step(model, optimizer, number)
        rows.append(number)
    optimizer.close()
    return rows.rows


def recovered(run: Path, step: int | None = None) -> tuple[Any, Any]:
    """Return the rows and the report of a recovery."""
    optimizer, rows, _ = begin(run, step)
    optimizer.close()
    return rows.rows, optimizer.report


def test_what_was_added_behind_the_checkpoint_comes_back(tmp_path: Path) -> None:
    train(tmp_path / "run", 7)
    rows, report = recovered(tmp_path / "run")
    assert (report.step, report.checkpoint_step, report.exact) == (7, 4, True)
    np.testing.assert_array_equal(rows, expected(7))
    forget_checkpoints(tmp_path / "run/rank0")
    rows, report = recovered(tmp_path / "run")
    assert (report.step, report.checkpoint_step) == (7, 0)
    np.testing.assert_array_equal(rows, expected(7))


def test_training_goes_on_from_what_came_back(tmp_path: Path) -> None:
    for until in (3, 6, 11):
        np.testing.assert_array_equal(train(tmp_path / "run", until), expected(until))
    np.testing.assert_array_equal(recovered(tmp_path / "run")[0], expected(11))


def test_an_older_step_has_what_there_was_then(tmp_path: Path) -> None:
    train(tmp_path / "run", 7)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    for step in (2, 4, 5):
        np.testing.assert_array_equal(recovered(tmp_path / "other", step)[0], expected(step))
    np.testing.assert_array_equal(train(tmp_path / "run", 9, step=3), expected(9))
    np.testing.assert_array_equal(recovered(tmp_path / "run")[0], expected(9))


def test_a_damaged_checkpoint_costs_nothing(tmp_path: Path) -> None:
    train(tmp_path / "run", 7)
    newest = max((tmp_path / "run/rank0/checkpoints").iterdir())
    (newest / "meta.bin").write_bytes(b"damaged")
    rows, report = recovered(tmp_path / "run")
    assert (report.step, report.checkpoint_step) == (7, 0)
    assert any(newest.name in note for note in report.notes), report.notes
    np.testing.assert_array_equal(rows, expected(7))


def test_a_damaged_addition_is_named_and_nothing_behind_it_is_used(tmp_path: Path) -> None:
    train(tmp_path / "run", 7)
    segment, at = find_bytes(tmp_path / "run/rank0", expected(6)[-ROWS // 2 :].tobytes()[:64])
    forget_checkpoints(tmp_path / "run/rank0")
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"damaged!")
    rows, report = recovered(tmp_path / "run")
    assert report.step < 6
    assert any(segment.name in note for note in report.notes), report.notes
    np.testing.assert_array_equal(rows, expected(report.step))


def find_bytes(journal: Path, wanted: bytes) -> tuple[Path, int]:
    """Return the segment that holds some bytes, and their place."""
    for segment in sorted(path for path in (journal / "log").rglob("*") if path.is_file()):
        at = segment.read_bytes().find(wanted)
        if at >= 0:
            return segment, at
    raise AssertionError("no segment holds these bytes")
