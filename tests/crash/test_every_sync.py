"""The power goes at every sync of a run, one after the other, on a model of a disk: what was called synced is there.

At each sync two things are tried: the disk has nothing that no sync covered; or it has a random part of it, page by page and
name by name, which is harsher than a power cut. The run is made, trains, rolls, seals and recycles segments, takes, publishes
and prunes checkpoints, is closed, is opened and recovered, and trains on.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.crash.lossy_disk import LossyDisk
from tests.crash.processes import Judge
from tests.crash.toy_trainers import SIZES
from tests.support import campaign
from tests.support.toy import ToyTrainer, open_toy
from tranlogs.base.config import JournalConfig
from tranlogs.catalog import CATALOG_NAME, Catalog
from tranlogs.checkpoints import writer
from tranlogs.log import segment_file as segments
from tranlogs.log.segment_file import SegmentFile
from tranlogs.retention import EverySteps, KeepAll, KeepLatest

pytestmark = pytest.mark.crash

STEPS, LAST = (8, 12) if campaign.is_soak() else (5, 8)  # trained before the run is opened again, and in all
KINDS = ("catalog", "checkpoint", "log", "names")
FAULT = "writes since the last sync lost or reordered, page by page"


def opened(run: Path, files: str = "recycled", writer: Any = "direct") -> ToyTrainer:
    """Segments that are recycled, since the newest checkpoint alone is kept; or that are not."""
    config = JournalConfig(durability="machine", segment_bytes=1 << 20, writer=writer)
    every, keep = (EverySteps(3), KeepLatest(1)) if files == "recycled" else (EverySteps(20), KeepAll())
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


def judge_images(disk: LossyDisk, judge: Judge) -> Counter[str]:
    """Judge the images that were taken; return how many came back to exactly what was synced, or to later steps."""
    found = Counter[str]()
    while disk.images:
        image = disk.images.pop()
        assert image.least == 0 or (image.folder / "run" / "rank0" / CATALOG_NAME).exists()
        print(image)
        verdict = judge(image.folder / "run", image.least, 2)
        found["later" if verdict["step"] > image.least else "exactly"] += 1
        shutil.rmtree(image.folder)
    return found


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)
@pytest.mark.parametrize("writer", ["thread", "direct"])
@pytest.mark.parametrize("files", ["recycled", "fresh"])
def test_synced_steps_survive_a_power_cut_at_every_sync(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, files: str, writer: str, seed: int
) -> None:
    print(f"repeat with TRANLOGS_SEED={seed}")
    found = Counter[str]()
    (memory_path / "disk").mkdir()
    run, disk = memory_path / "disk" / "run", LossyDisk(memory_path / "disk", memory_path / "images", random.Random(seed))
    with closing(Judge(memory_path, FAULT)) as judge:  # whose own syncs are none of the disk's
        disk.install(monkeypatch)
        recycled = count_recycled(monkeypatch)

        def behind(step: int) -> None:
            if step % 2:
                trainer.journal.wait_synced()  # every other step is a group of its own
            trainer.journal.wait_checkpoint()
            if step % 3 == 1 and trainer.journal.log.wal is not None:
                trainer.journal.wait_synced()
                trainer.journal.log.wal.roll()
            found.update(judge_images(disk, judge))

        trainer = opened(run, files, writer)
        disk.synced = lambda: trainer.journal.synced
        trainer.recover()
        trainer.train(STEPS, behind)
        trainer.journal.close()
        disk.cut()
        found.update(judge_images(disk, judge))
        disk.synced = lambda: STEPS
        again = opened(run, files, writer)
        assert again.recover().step == STEPS
        trainer = again
        disk.synced = lambda: trainer.journal.synced
        for more in range(4):  # what is lost is drawn, and how much there is to be lost depends on the threads
            trainer.train(LAST + more * (LAST - STEPS), behind)
            if all(min(disk.lost[kind], disk.kept[kind]) for kind in KINDS):
                break
        trainer.journal.close()
        disk.cut()
        found.update(judge_images(disk, judge))
    disk.close()
    print(f"syncs {disk.syncs}, lost {disk.lost}, kept {disk.kept}, recovered {found}")
    assert not disk.refused
    assert (len(recycled) > 0) == (files == "recycled")
    for kind in KINDS:  # cuts at syncs of each, which lose something and keep something
        assert min(disk.syncs[kind], disk.lost[kind], disk.kept[kind]) > 0, kind
    assert min(found["exactly"], found["later"]) > 0


@pytest.mark.parametrize("found", ["when the run is opened", "when its catalog is rebuilt", "when it is asked for again"])
def test_found_checkpoint_is_listed_once_its_name_is_kept(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """What a crash left between its rename and the sync of the folder must not vanish when others were pruned for it."""
    (memory_path / "disk").mkdir()
    disk = LossyDisk(memory_path / "disk", memory_path / "images", random.Random(campaign.seed()))
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
    disk.images.clear()  # of the syncs so far
    for _ in range(10):
        disk.cut()
    trainer.journal.close()
    disk.close()
    for image in disk.images:
        folder = image.folder / "run" / "rank0"
        catalog = Catalog.open(folder)
        names = {row.name for row in catalog.checkpoints()}
        catalog.close()
        assert len(names) == 2
        assert names <= set(os.listdir(folder / "checkpoints"))
