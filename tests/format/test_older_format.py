"""A run in format 2, which was never released, is refused by name, with what to do, and nothing of it is touched."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.format.test_newer_version import content
from tests.support.toy import open_toy
from tests.support.verify import verify_run
from tranlogs.base.errors import UnknownFormat
from tranlogs.catalog import CATALOG_NAME
from tranlogs.verify import Problem

ARCHIVE = Path(__file__).parents[1] / "data" / "run-format-2.tar.xz"
WHAT = "format version 2, and this TranLogs reads version 3"
ADVICE = "start a new run from the file in another folder"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
    return tmp_path / "run"


def without_catalog(run: Path) -> None:
    (run / "rank0" / CATALOG_NAME).unlink()


def without_checkpoints(run: Path) -> None:
    """Only the log is left."""
    without_catalog(run)
    for path in sorted((run / "rank0" / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("damage", [lambda run: None, without_catalog, without_checkpoints], ids=["whole", "no catalog", "log"])
def test_format_2_is_refused_and_left_alone(old: Path, damage: Callable[[Path], None]) -> None:
    damage(old)
    before = content(old)
    with pytest.raises(UnknownFormat, match=WHAT) as caught:
        open_toy(old)
    assert ADVICE in str(caught.value)
    assert content(old) == before


def test_verify_names_format_2(old: Path) -> None:
    problems = [finding for finding in verify_run(old) if isinstance(finding, Problem)]
    assert [problem.what for problem in problems if WHAT in problem.what]
