"""The power goes, or the disk dies, under a trainer: what was called synced is there, exact, and training goes on."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.crash import tally
from tests.crash.processes import Judge, training
from tests.support import campaign, disks

pytestmark = [pytest.mark.crash, pytest.mark.disks]

CUTS = campaign.rounds(30)
SEEDS = pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for images of disks: in memory where there is plenty, since thirty of them are mounted one after the other."""
    if not os.path.isdir("/dev/shm") or shutil.disk_usage("/dev/shm").free < 6 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def judge_cut(judge: Judge, cut: Path, synced: int) -> dict[str, Any]:
    """The verdict on what the disk held when the power went."""
    with disks.mounted(cut, cut.with_name("cut")) as folder:
        verdict = judge(folder / "run", synced)
    cut.unlink()
    return verdict


@SEEDS
def test_synced_steps_survive_power_cuts(place: Path, seed: int) -> None:
    """And the cuts are real: with durability="process", which syncs nothing but checkpoints, committed steps are gone."""
    print(f"repeat with TRANLOGS_SEED={seed}")
    chance = random.Random(seed)
    with disks.cuttable_disk(place) as disk, closing(Judge(place, "power cut, of a real disk image")) as judge:
        with training(place / "said", disk.folder / "run") as trainer:
            trainer.wait_for(1)
            cuts = [(trainer.wait_for(chance.randrange(1, 40))[1], disk.cut(f"cut{i}.img")) for i in range(CUTS)]
        assert max(synced for synced, _ in cuts) > 0
        for synced, cut in cuts:
            judge_cut(judge, cut, synced)
    with (
        closing(Judge(place, None)) as judge,
        disks.cuttable_disk(place) as disk,
        training(place / "said", disk.folder / "run", durability="process") as trainer,
    ):
        for number in range(40):  # a checkpoint may come between the moment in which `committed` is read and the cut
            committed = trainer.wait_for(20)[2]
            if judge_cut(judge, disk.cut(f"cut{number}.img"), 0)["step"] < committed:
                return
    pytest.fail("none of 40 power cuts took a step that was not synced")


@pytest.mark.parametrize(
    ("durability", "let_fail"),
    [
        ("machine", disks.let_die),
        campaign.in_soak("process", disks.let_die),
        campaign.in_soak("machine", disks.turn_read_only),
        ("process", disks.turn_read_only),
    ],
    ids=["machine-dies", "process-dies", "machine-read_only", "process-read_only"],
)
@SEEDS
def test_training_goes_on_when_the_disk_dies_or_turns_read_only(
    place: Path, durability: str, let_fail: Callable[[Path], None], seed: int
) -> None:
    """What was synced is there when the disk is mounted anew; what was committed, as long as a read-only one is mounted."""
    print(f"repeat with TRANLOGS_SEED={seed}")
    chance, is_read_only = random.Random(seed), let_fail == disks.turn_read_only
    fault = "the file system turns read-only under the trainer" if is_read_only else "the disk dies under the trainer"
    image, until = place / "disk.img", 600
    with closing(Judge(place, None)) as judge:
        for _ in range(campaign.few(4)):
            disks.make_ext4(image)
            with tally.trying(fault):
                with disks.mounted(image, place / "disk") as disk:
                    with training(place / "said", disk / "run", durability=durability, until=until) as trainer:
                        synced = trainer.wait_for(chance.randrange(1, 60))[1]  # of before: a sync in that very moment
                        let_fail(disk)  # may be told as done, and is not
                        assert trainer.process.answer() == "closed"
                        assert trainer.process.wait() == 0
                    assert trainer.process.said.count("logging is suspended") == 1
                    assert "Traceback" not in trainer.process.said
                    assert trainer.marks[2] < until
                    if is_read_only:
                        copy_readable(disk / "run", place / "copy")
                        judge(place / "copy", trainer.marks[2])
                        shutil.rmtree(place / "copy")
                with disks.mounted(image, place / "disk") as disk:
                    verdict = judge(disk / "run", synced if durability == "machine" or not is_read_only else 0)
                assert verdict["step"] < until
            tally.note(fault, seconds=verdict["seconds"])


def copy_readable(run: Path, to: Path) -> None:
    """A copy of all that can be opened: of a rename that it came between, ext4 may list a name and have no file by it."""
    try:
        shutil.copytree(run, to)
    except shutil.Error as error:  # all the rest has been copied
        if not all("[Errno 2]" in why for _, _, why in error.args[0]):
            raise
