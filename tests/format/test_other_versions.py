"""A run that a newer version wrote, or one in format 2, which was never released, is refused by name; nothing is touched."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.abandon import abandoned_copy
from tests.support.toy import ToyTrainer, open_toy
from tests.support.verify import problems_of
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import UnknownFormat
from tranlogs.catalog import CATALOG_NAME, Catalog
from tranlogs.checkpoints.folder import MANIFEST, open_manifest, seal_manifest
from tranlogs.log import writer as log_writer
from tranlogs.retention import EverySteps

SIZES = (7, 300)


def new_catalog(run: Path) -> Path:
    catalog = Catalog.open(run / "rank0", writable=True)
    row = catalog.run()
    assert row is not None
    with catalog.transaction() as tables:
        tables.put("run", replace(row, format=7))
    catalog.close()
    return run / "rank0" / CATALOG_NAME


def new_checkpoint(run: Path) -> Path:
    path = max((run / "rank0" / "checkpoints").iterdir()) / MANIFEST
    path.write_bytes(seal_manifest({**open_manifest(path.read_bytes()), "format": 7}))
    return path


def new_checkpoint_and_no_catalog(run: Path) -> Path:
    (run / "rank0" / CATALOG_NAME).unlink()
    return new_checkpoint(run)


def new_segment(run: Path) -> Path:
    """The run of `left` was written so."""
    return max((run / "rank0" / "log").glob("*.seg"))


def content(run: Path) -> dict[Path, bytes]:
    """Every file, but those that say who has the run open and those that LMDB locks with."""
    passing = ("owner.json", "owner.lock")
    files = (path for path in run.rglob("*") if path.is_file() and not path.name.endswith("-lock"))
    return {path: path.read_bytes() for path in files if path.name not in passing}


def train(run: Path) -> ToyTrainer:
    trainer = open_toy(run, sizes=SIZES, policy=EverySteps(4), config=JournalConfig(segment_bytes=1 << 20))
    trainer.recover()
    return trainer


@pytest.mark.parametrize("part", [new_catalog, new_checkpoint, new_checkpoint_and_no_catalog, new_segment])
def test_a_newer_run_is_refused_and_not_touched(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, part: Callable[[Path], Path]
) -> None:
    trainer = train(memory_path / "run")
    trainer.train(9)
    with monkeypatch.context() as patch:
        if part is new_segment:
            patch.setattr(log_writer, "FORMAT_VERSION", 7)
        trainer.train(13)
    left = memory_path / "left"
    abandoned_copy(trainer.journal, left)
    trainer.journal.close()
    part(left)
    before = content(left)
    said = "format version 7, and this TranLogs reads version 3: upgrade TranLogs"
    with pytest.raises(UnknownFormat, match=said):
        train(left)
    assert [one for one in problems_of(left) if said in one.what]
    after = content(left)
    assert {path: after.get(path) == data for path, data in before.items()} == dict.fromkeys(before, True)
    assert after.keys() == before.keys()


ARCHIVE = Path(__file__).parents[1] / "data" / "run-format-2.tar.xz"
ADVICE = "start a new run from the file in another folder"
WHAT = "format version 2, and this TranLogs reads version 3"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
    return tmp_path / "run"


def without_checkpoints(run: Path) -> None:
    """Only the log is left."""
    (run / "rank0" / CATALOG_NAME).unlink()
    for path in sorted((run / "rank0" / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("damage", [lambda run: None, without_checkpoints], ids=["whole", "log"])
def test_format_2_is_refused_with_what_to_do_and_left_alone(old: Path, damage: Callable[[Path], None]) -> None:
    damage(old)
    before = content(old)
    with pytest.raises(UnknownFormat, match=f"{WHAT}.*{ADVICE}"):
        open_toy(old)
    assert content(old) == before
    assert [one for one in problems_of(old) if WHAT in one.what]
