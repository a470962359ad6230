"""A run that many want to open at once, and runs that are copied while they are written, or moved."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.crash.judging import judging
from tests.support import campaign

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
COPIES, RACES = campaign.rounds(100), campaign.rounds(20)


class Training:
    """A trainer in another process, and the newest step that it has committed."""

    def __init__(self, run: Path, durability: str) -> None:
        # In memory that both have: what was said is known at once, however late this process gets its turn.
        said = Path(f"{run}.said")
        self._said = np.memmap(said, np.int64, "w+", shape=1)
        self.process = subprocess.Popen([sys.executable, str(HERE / "copied_child.py"), str(run), durability, str(said)])

    @property
    def committed(self) -> int:
        return int(self._said[0])

    def wait_for(self, more: int) -> int:
        """Wait for some more steps; gives the newest."""
        target, until = self.committed + more, time.monotonic() + 60
        while self.committed < target:
            assert time.monotonic() < until
            time.sleep(0.001)
        return self.committed

    def kill(self) -> int:
        """End it; gives the newest step."""
        self.process.kill()
        self.process.wait()
        return self.committed


@contextmanager
def training(run: Path, durability: str) -> Iterator[Training]:
    made = Training(run, durability)
    try:
        yield made
    finally:
        made.kill()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("durability", ["machine", "process"])
def test_a_copy_of_a_run_that_is_written_recovers_to_a_committed_boundary(memory_path: Path, durability: str) -> None:
    chance, verdicts = campaign.dice(durability), []
    with judging() as judge, training(memory_path / "run", durability) as trainer:
        trainer.wait_for(25)
        for i in range(COPIES):
            before = trainer.wait_for(chance.randrange(1, 30))
            copy = memory_path / f"copy{i}"
            # What is deleted while it is copied cannot be copied: cp says so and goes on.
            copied = subprocess.run(["cp", "-r", str(memory_path / "run"), str(copy)], capture_output=True, text=True)
            after = trainer.committed
            verdict = judge(copy, 0)
            print(f"{before} to {after}: {copied.stderr.strip()} {verdict}")
            assert "failed" not in verdict, verdict["failed"]
            assert verdict["step"] <= after + 1  # what is committed is said a moment later
            verdicts.append((before, verdict["step"]))
            shutil.rmtree(copy)
        newest = trainer.kill()
        verdict = judge(memory_path / "run", newest)
        assert "failed" not in verdict, verdict["failed"]
    assert max(before for before, _ in verdicts) > 0
    assert all(step > 0 for _, step in verdicts)


def test_a_run_that_was_moved_goes_on_where_it_stopped(memory_path: Path) -> None:
    run, said = memory_path / "run", 0
    with judging() as judge:
        for name in ("elsewhere", "a folder/with spaces"):
            with training(run, "machine") as trainer:
                said = max(said, trainer.wait_for(10))
                said = max(said, trainer.kill())
            target = memory_path / name
            target.parent.mkdir(exist_ok=True)
            run.rename(target)
            run = target
        run = run.rename(memory_path / "last")
        verdict = judge(run, said)
    assert "failed" not in verdict, verdict["failed"]
    assert verdict["problems"] == []


def test_of_many_that_open_a_run_at_once_exactly_one_wins(memory_path: Path) -> None:
    run, count = memory_path / "run", 10
    with judging() as judge:
        for _ in range(RACES):
            command = [sys.executable, str(HERE / "race_child.py"), str(run), str(count)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert "Traceback" not in done.stderr, done.stderr
            got = [line.split() for line in done.stdout.splitlines()]
            winners = [pid for word, pid in got if word == "won"]
            print(got)
            assert len(winners) == 1
            assert [pid for word, pid in got if word == "refused"] == winners * (count - 1)
        verdict = judge(run, 20 * RACES)
    assert "failed" not in verdict, verdict["failed"]
    assert verdict["problems"] == []
