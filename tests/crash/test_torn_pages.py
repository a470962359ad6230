"""A disk that loses or reorders what was written since its last sync, harsher than a power cut: all files of a run, and names.

Images are taken at rest and at calls of any thread, so amid a sync, a checkpoint, pruning, recycling, a commit to the
catalog.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.judging import Judge, judging
from tests.crash.lossy_disk import LossyDisk
from tests.support import campaign
from tests.support.toy import ToyTrainer, open_toy
from tranlogs.base.config import JournalConfig
from tranlogs.catalog import CATALOG_NAME, Catalog
from tranlogs.checkpoints import writer
from tranlogs.log import segment_file as segments
from tranlogs.log.segment_file import SegmentFile
from tranlogs.retention import EverySteps, KeepAll, KeepLatest

pytestmark = pytest.mark.crash

SIZES = (7, 3000, 5000)  # those of power_child.py
MOMENTS = (
    "rest",
    "catalog",
    "checkpoint",
    "names",
    "log",
    "catalog",
    "any",
    "catalog",
    "checkpoint",
    "names",
    "catalog",
    "any",
)


KINDS = ("catalog", "checkpoint", "log", "names")


def moments(disk: LossyDisk) -> Iterator[str]:
    """When images are taken: at `MOMENTS`, and again at kinds of which the disk has lost or kept nothing (threads decide)."""
    yield from MOMENTS
    for _ in range(10):
        missing = [kind for kind in KINDS if not disk.lost[kind] or (kind == "catalog" and not disk.kept[kind])]
        yield from missing[:1]


def judged(disk: LossyDisk, judge: Judge) -> list[dict[str, Any]]:
    """Verdicts on the images that were taken."""
    verdicts = []
    while disk.images:
        image = disk.images.pop()
        assert image.least == 0 or (image.folder / "run" / "rank0" / CATALOG_NAME).exists()
        verdicts.append({"at": image.at, **judge(image.folder / "run", image.least)})
        print(verdicts[-1])
        shutil.rmtree(image.folder)
    return verdicts


def opened(run: Path, files: str) -> ToyTrainer:
    """Segments that are recycled, since the newest checkpoint alone is kept; or that are not."""
    config = JournalConfig(durability="machine", segment_bytes=1 << 20)
    every, keep = (EverySteps(9), KeepLatest(1)) if files == "recycled" else (EverySteps(20), KeepAll())
    return open_toy(run, sizes=SIZES, config=config, policy=every, retention=keep)


def count_recycled(monkeypatch: pytest.MonkeyPatch) -> list[SegmentFile]:
    """A list that gets the segments whose file is used again."""
    recycle, recycled = segments.recycle, list[SegmentFile]()

    def reused(*given: Any) -> SegmentFile | None:
        made = recycle(*given)
        recycled.extend([] if made is None else [made])
        return made

    monkeypatch.setattr(segments, "recycle", reused)
    return recycled


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("files", ["fresh", "recycled"])
def test_synced_steps_survive_torn_pages(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, files: str, share: float, seed: int
) -> None:
    print(f"repeat with TRANLOGS_SEED={seed}")
    rnd, found, recycled = random.Random(seed), list[dict[str, Any]](), count_recycled(monkeypatch)
    (memory_path / "disk").mkdir()
    disk = LossyDisk(memory_path / "disk", memory_path / "images", share, rnd)
    disk.install(monkeypatch)
    disk.want("any", rnd.randrange(40))  # while the run is made
    trainer = opened(memory_path / "disk" / "run", files)
    disk.synced = lambda: trainer.journal.synced
    trainer.recover()

    def roll(step: int) -> None:
        if step % 10 == 0:
            assert trainer.journal.log.wal is not None
            trainer.journal.log.wal.roll()

    with judging("writes since the last sync lost or reordered, page by page") as judge:
        for moment in moments(disk):
            trainer.train(trainer.journal.step + rnd.randrange(1, 15), roll)
            if moment == "rest":
                disk.take()
            else:
                disk.want(moment, rnd.randrange(4))
            while disk.is_waiting:
                trainer.train(trainer.journal.step + 1, roll)
            found += judged(disk, judge)
        disk.want("any", rnd.randrange(10))
        trainer.journal.close()
        found += judged(disk, judge)
    disk.close()
    print(f"lost {disk.lost}, kept {disk.kept}")
    assert not [verdict["failed"] for verdict in found if "failed" in verdict]
    assert not [verdict["problems"] for verdict in found if verdict["problems"]]
    assert not disk.refused
    assert (len(recycled) > 0) == (files == "recycled")
    assert min(disk.lost[kind] for kind in KINDS) > 0
    assert disk.kept["catalog"] > 0


@pytest.mark.parametrize("found", ["when the run is opened", "when its catalog is rebuilt", "when it is asked for again"])
def test_found_checkpoint_is_listed_once_its_name_is_kept(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """What a crash left between its rename and the sync of the folder must not vanish when others were pruned for it."""
    (memory_path / "disk").mkdir()
    disk = LossyDisk(memory_path / "disk", memory_path / "images", 0.5, random.Random(campaign.seed()))
    disk.install(monkeypatch)
    sync_folder = writer.sync_folder

    def sync_others(folder: Path) -> None:
        if folder.name == "checkpoints":
            raise OSError(errno.EIO, "the disk fails")
        sync_folder(folder)

    trainer = opened(memory_path / "disk" / "run", "fresh")
    trainer.recover()
    with monkeypatch.context() as patched:
        patched.setattr(writer, "sync_folder", sync_others)
        trainer.train(10)
        assert not trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    if found == "when it is asked for again":
        assert trainer.journal.checkpoint(trainer.state.snapshot(), wait=True)
    else:
        trainer.journal.close()
        if "rebuilt" in found:
            (trainer.journal.paths.folder / CATALOG_NAME).unlink()
        trainer = opened(memory_path / "disk" / "run", "fresh")
    for _ in range(20):
        disk.take()
    trainer.journal.close()
    disk.close()
    for image in disk.images:
        folder = image.folder / "run" / "rank0"
        catalog = Catalog.open(folder)
        names = {row.name for row in catalog.checkpoints()}
        catalog.close()
        assert len(names) == 2
        assert names <= set(os.listdir(folder / "checkpoints"))
