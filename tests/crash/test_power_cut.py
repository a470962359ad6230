"""The power goes, or the disk dies, under a trainer: what was called synced is there, exact, and training goes on."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.crash import tally
from tests.crash.judging import CHILD, Judge, judging
from tests.support import campaign, disks

pytestmark = [pytest.mark.crash, pytest.mark.disks]

_SMALL = 128 << 20  # bytes of a disk that is to be full; a run takes some 50 of them
CUTS, SEED = campaign.rounds(30), campaign.seed()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder for images of disks: in memory where there is plenty, since thirty of them are mounted one after the other."""
    if not os.path.isdir("/dev/shm") or shutil.disk_usage("/dev/shm").free < 6 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


class Trainer:
    """A child that trains; its last words are always at hand."""

    def __init__(self, run: Path, durability: str, until: int) -> None:
        command = [sys.executable, str(CHILD), "train", str(run), durability, str(until)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.lines, self.synced, self.committed, self.is_closed = 0, 0, 0, False
        self.is_held_up = False  # the last step was not committed
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._listen, args=(self.process.stdout,))
        self._thread.start()

    def _listen(self, stdout: IO[str]) -> None:
        for line in stdout:
            if not line.endswith("\n"):
                break  # it was killed in the middle of a word
            with self._changed:
                self.lines += 1
                if line.strip() == "closed":
                    self.is_closed = True
                else:
                    before, (self.synced, self.committed) = self.committed, map(int, line.split())
                    self.is_held_up = self.committed == before
                self._changed.notify_all()
        with self._changed:
            self.lines = 1 << 60
            self._changed.notify_all()

    def wait_for(self, more: int) -> tuple[int, int]:
        """Wait for some more steps; the watermarks (synced, committed) as last printed."""
        with self._changed:
            target = self.lines + more
            assert self._changed.wait_for(lambda: self.lines >= target, timeout=120)
            assert self.lines < 1 << 60, "the trainer has ended"
            return self.synced, self.committed

    def finish(self) -> tuple[int, str]:
        """Wait for its end: exit status and stderr."""
        assert self.process.stderr is not None
        error = self.process.stderr.read()
        self._thread.join()
        return self.process.wait(), error


@contextmanager
def training(run: Path, durability: str, until: int = 10**9) -> Iterator[Trainer]:
    trainer = Trainer(run, durability, until)
    try:
        yield trainer
    finally:
        trainer.process.kill()
        print(trainer.finish()[1][-2000:])
        for stream in (trainer.process.stdout, trainer.process.stderr):
            assert stream is not None
            stream.close()


@pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)
def test_synced_steps_survive_power_cuts(place: Path, seed: int) -> None:
    rnd = random.Random(seed)
    print(f"repeat with TRANLOGS_SEED={seed}")
    verdicts = []
    with disks.cuttable_disk(place) as disk:
        with training(disk.folder / "run", "machine") as trainer:
            trainer.wait_for(1)
            cuts = [(*trainer.wait_for(rnd.randrange(1, 40)), disk.cut(f"cut{i}.img")) for i in range(CUTS)]
        with judging("power cut, of a real disk image") as judge:
            for synced, committed, cut in cuts:
                with disks.mounted(cut, place / "cut") as folder:
                    verdicts.append(judge(folder / "run", synced))
                cut.unlink()
                print(f"{cut.name}: synced {synced}, committed {committed} -> {verdicts[-1]}")
    assert not [verdict["failed"] for verdict in verdicts if "failed" in verdict]
    assert not [verdict["problems"] for verdict in verdicts if verdict["problems"]]
    assert max(verdict["least"] for verdict in verdicts) > 0


@pytest.mark.sampled(0)
@pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)
def test_synced_steps_survive_power_cuts_of_a_disk_that_fills_up(place: Path, seed: int) -> None:
    """Something else takes all space, or all but some, and gives it back, again and again; the power goes at any moment."""
    rnd, was_held_up = random.Random(seed), 0
    print(f"repeat with TRANLOGS_SEED={seed}")
    with disks.cuttable_disk(place, _SMALL) as disk, judging("power cut, of a disk that fills up and empties") as judge:
        for life in range(6):  # one that goes on would look for space ever more rarely
            ballast = disks.fill(disk.folder, leave=rnd.choice([2, 12, 24]) << 20) if life % 2 else None
            with training(disk.folder / "run", "machine") as trainer:
                trainer.wait_for(rnd.randrange(1, 40))
                for number in range(4):
                    if ballast is None:
                        ballast = disks.fill(disk.folder, leave=rnd.choice([0, 0, 1, 4, 12]) << 20)
                    else:
                        ballast = ballast.unlink()
                    synced, committed = trainer.wait_for(rnd.randrange(1, 150))
                    was_held_up += trainer.is_held_up
                    cut = disk.cut(f"cut{number}.img")
                    with disks.mounted(cut, place / "cut") as folder:
                        for path in folder.glob("ballast-*"):
                            path.unlink()
                        verdict = judge(folder / "run", synced)
                    cut.unlink()
                    print(f"{life} {cut.name}: synced {synced}, committed {committed} -> {verdict}")
                    assert "failed" not in verdict, verdict["failed"]
                    assert verdict["problems"] == []
            if ballast is not None:
                ballast.unlink()
    print(f"{was_held_up} cuts while no step was logged")


def test_power_cut_takes_what_is_not_synced(place: Path) -> None:
    """The cuts are real: without syncs, steps that were committed are gone. What is left is exact all the same.

    A checkpoint may come between the moment in which `committed` is read and the cut: then nothing is gone, and it cuts again.
    """
    with disks.cuttable_disk(place) as disk, judging() as judge, training(disk.folder / "run", "process") as trainer:
        for number in range(40):
            committed = trainer.wait_for(20)[1]
            cut = disk.cut(f"cut{number}.img")
            with disks.mounted(cut, place / "cut") as folder:
                verdict = judge(folder / "run", 0)
            cut.unlink()
            assert "failed" not in verdict, verdict["failed"]
            if verdict["step"] < committed:
                return
    pytest.fail("none of 40 power cuts took a step that was not synced")


@pytest.mark.parametrize("durability", ["machine", campaign.in_soak("process")])
def test_training_goes_on_when_the_disk_dies(place: Path, durability: str) -> None:
    rnd = random.Random(SEED)
    print(f"repeat with TRANLOGS_SEED={SEED}")
    image = disks.make_ext4(place / "disk.img")
    with judging("the disk dies under the trainer") as judge:
        for _ in range(4):
            with disks.mounted(image, place / "disk") as disk, training(disk / "run", durability, until=600) as trainer:
                synced, _ = trainer.wait_for(rnd.randrange(1, 60))
                disks.let_die(disk)
                status, error = trainer.finish()
            print(error)
            assert status == 0
            assert trainer.is_closed
            assert error.count("logging is suspended") == 1
            assert "Traceback" not in error
            with disks.mounted(image, place / "disk") as disk:
                verdict = judge(disk / "run", synced)
            assert "failed" not in verdict, verdict["failed"]
            assert verdict["problems"] == []
            assert verdict["step"] < 600
            image = disks.make_ext4(image)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)
@pytest.mark.parametrize("durability", [campaign.in_soak("machine"), "process"])
def test_training_goes_on_when_the_file_system_turns_read_only(place: Path, durability: str, seed: int) -> None:
    """What was committed is there while it is mounted, what was synced when it is mounted anew."""
    rnd, fault = random.Random(seed), "the file system turns read-only under the trainer"
    print(f"repeat with TRANLOGS_SEED={seed}")
    with judging() as judge:
        for _ in range(3):
            with tally.trying(fault):
                seconds = turned_read_only(place, durability, rnd.randrange(1, 60), judge)
            tally.note(fault, seconds=seconds)


def copy_readable(run: Path, to: Path) -> None:
    """A copy of all that can be opened: of a rename that it came between, ext4 may list a name and have no file by it."""
    try:
        shutil.copytree(run, to)
    except shutil.Error as error:  # all the rest has been copied
        if not all("[Errno 2]" in why for _, _, why in error.args[0]):
            raise


def turned_read_only(place: Path, durability: str, after: int, judge: Judge) -> float:
    """How long the slower of both recoveries took."""
    image = disks.make_ext4(place / "disk.img")
    with disks.mounted(image, place / "disk") as disk:
        with training(disk / "run", durability, until=600) as trainer:
            synced, _ = trainer.wait_for(after)  # of before: a sync in that very moment may be told as done, and is not
            disks.turn_read_only(disk)
            status, error = trainer.finish()
        assert (status, trainer.is_closed, error.count("logging is suspended")) == (0, True, 1)
        assert "Traceback" not in error
        assert trainer.committed < 600
        copy_readable(disk / "run", place / "copy")
    verdicts = [judge(place / "copy", trainer.committed)]
    shutil.rmtree(place / "copy")
    with disks.mounted(image, place / "disk") as disk:
        verdicts.append(judge(disk / "run", synced if durability == "machine" else 0))
    for verdict in verdicts:
        assert "failed" not in verdict, verdict["failed"]
        assert verdict["problems"] == []
    return float(max(verdict["seconds"] for verdict in verdicts))
