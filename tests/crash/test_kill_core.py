"""A trainer dies by SIGKILL, at every fault point of the write path and at random moments; nothing committed is lost."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from tranlogs import KeepLatest
from tranlogs.config import JournalConfig
from tranlogs.failpoints import POINTS
from tranlogs.testing.toy import ToyState, open_toy
from tranlogs.verify import Problem, verify_run
from tranlogs.wal import log

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("toy_child.py")
SIZES = (7, 300, 2500)
UNTIL = 26
IN_RECOVERY = [point for point in POINTS if point.startswith("recovery.")]
IN_TRAINING = [point for point in POINTS if point not in IN_RECOVERY]


def state_sum(state: ToyState) -> int:
    return xxh3_64_intdigest(state.everything())


@cache
def sums(steps: int) -> list[int]:
    """What a run that was never killed has after each step."""
    state = ToyState(SIZES)
    found = [state_sum(state)]
    for step in range(1, steps + 1):
        state.take_step(step)
        found.append(state_sum(state))
    return found


@dataclass
class Outcome:
    """What a trainer said before it ended."""

    status: int
    recovered: int | None = None  # the step that it came back to
    committed: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def was_killed(self) -> bool:
        return self.status == -signal.SIGKILL


class Trainers:
    """Forks trainers and kills them."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})  # fmt: skip

    def run(self, run: Path, *, kill_after: tuple[int, float] | None = None, until: int = UNTIL, failpoints: str = "",
            handover: str = "direct", durability: str = "machine", settles: bool = True) -> Outcome:  # fmt: skip
        """Train in a child.

        Args:
            run: the run's folder.
            kill_after: kill the child so many lines and seconds after its start.
            until: the last step.
            failpoints: as in TRANLOGS_FAILPOINTS.
            handover: of the journal.
            durability: of the journal.
            settles: whether all threads are idle between steps, so that every point is passed at a known place.
        """
        job: dict[str, Any] = {"run": str(run), "until": until, "failpoints": failpoints, "handover": handover}
        self._tell({**job, "durability": durability, "settles": settles})
        pid = int(self._line()[1])
        outcome, lines = Outcome(0), 0
        while True:
            if kill_after is not None and lines == kill_after[0]:
                time.sleep(kill_after[1])  # any moment will do: the point is that it is not a known one
                os.kill(pid, signal.SIGKILL)
                kill_after = None
            word, *rest = self._line()
            lines += 1
            if word == "done":
                self._tell({})
                outcome.status = int(self._line()[1])
                return outcome
            self._note(outcome, word, rest)

    def _note(self, outcome: Outcome, word: str, rest: list[str]) -> None:
        if word == "recovered":
            outcome.recovered = outcome.committed = int(rest[0])
            assert rest[1] == "True"
            assert int(rest[2]) == sums(UNTIL + 3)[outcome.recovered], f"wrong state at step {outcome.recovered}"
        elif word == "count":
            outcome.counts[rest[0]] = int(rest[1])
        elif word.isdigit():
            outcome.committed = int(word)

    def _tell(self, content: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(content).encode() + b"\n")
        self.process.stdin.flush()

    def _line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().split()


@pytest.fixture(scope="module")
def trainers() -> Iterator[Trainers]:
    made = Trainers()
    yield made
    made.process.communicate()


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_RECORDS_WANTED", 1)


def assert_nothing_is_lost(run: Path, said: int) -> None:
    """Recovery lands at or behind the last committed step, on the right bits, and the run goes on and finishes right."""
    for until in (UNTIL + 2, UNTIL + 3):
        trainer = open_toy(run, sizes=SIZES, config=JournalConfig(segment_bytes=1 << 20), retention=KeepLatest(2))
        report = trainer.recover()
        assert report.step >= said, f"step {said} was committed, recovery landed on {report.step}"
        assert report.exact
        assert state_sum(trainer.state) == sums(UNTIL + 3)[report.step]
        trainer.train(until)
        trainer.journal.close()
        assert state_sum(trainer.state) == sums(UNTIL + 3)[until]
        said = until
    assert [found for found in verify_run(run) if isinstance(found, Problem)] == []


@cache
def passed(trainers: Trainers, folder: Path, handover: str) -> dict[str, int]:
    """How often a run that is not killed passes each point."""
    outcome = trainers.run(folder / f"counted-{handover}", handover=handover)
    assert outcome.status == 0
    return outcome.counts


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counted")


@pytest.mark.parametrize("handover", ["direct", "thread"])
def test_a_run_passes_every_point_of_the_write_path(trainers: Trainers, counted: Path, handover: str) -> None:
    counts = passed(trainers, counted, handover)
    assert {point: counts[point] for point in IN_TRAINING if counts[point] < 2} == {}
    assert {point: counts[point] for point in IN_RECOVERY if counts[point]} == {}


@pytest.mark.parametrize("when", ["first", "second", "middle", "late"])
@pytest.mark.parametrize("handover", ["direct", "thread"])
@pytest.mark.parametrize("point", IN_TRAINING)
def test_a_kill_at_a_fault_point_loses_nothing_committed(
    trainers: Trainers, counted: Path, memory_path: Path, point: str, handover: str, when: str
) -> None:
    count = passed(trainers, counted, handover)[point]
    nth = {"first": 1, "second": 2, "middle": max(1, count // 2), "late": max(1, count * 4 // 5)}[when]
    outcome = trainers.run(memory_path / "run", failpoints=f"{point}=kill@{nth}", handover=handover)
    assert outcome.was_killed, f"{point} was not reached {nth} times, but {count} times before"
    assert_nothing_is_lost(memory_path / "run", outcome.committed)


@pytest.mark.parametrize("handover", ["direct", "thread"])
@pytest.mark.parametrize("durability", ["process", "machine"])
def test_kills_at_random_moments_lose_nothing_committed(
    trainers: Trainers, memory_path: Path, handover: str, durability: str
) -> None:
    """Each run is killed again and again, in training, in recovery, and while it opens."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance, kills = random.Random(seed), 0
    wanted = int(os.environ.get("TRANLOGS_KILLS", "25"))
    for trial in itertools.count():
        run, said, lives = memory_path / f"run{trial}", 0, 0
        while lives < 8 and kills < wanted:
            lines = chance.choice([0, 0, 1, 1, 2, 3, 5, 8])
            outcome = trainers.run(run, kill_after=(lines, chance.random() * 0.03 if lines == 0 else chance.random() * 0.004),
                                   handover=handover, durability=durability, settles=chance.random() < 0.2)  # fmt: skip
            assert outcome.status in (0, -signal.SIGKILL)
            assert outcome.recovered is None or outcome.recovered >= said
            said, lives, kills = max(said, outcome.committed), lives + 1, kills + outcome.was_killed
            if said == UNTIL:
                break
        assert_nothing_is_lost(run, said)
        if kills >= wanted:
            return


@pytest.mark.parametrize("handover", ["direct", "thread"])
@pytest.mark.parametrize("point", [*IN_RECOVERY, *(p for p in IN_TRAINING if not p.startswith("boundary."))])
def test_a_second_kill_while_the_run_comes_back_loses_nothing(
    trainers: Trainers, memory_path: Path, point: str, handover: str
) -> None:
    """The first one in the middle of training; then the process that takes over dies, twice, at the point."""
    run = memory_path / "run"
    outcome = trainers.run(run, failpoints="wal.after_commit=kill@40", handover=handover)
    assert outcome.was_killed
    said, kills = outcome.committed, 0
    for nth in (1, 1, 2):
        outcome = trainers.run(run, failpoints=f"{point}=kill@{nth}", handover=handover)
        assert outcome.was_killed or outcome.counts[point] < nth  # it came to the end
        assert outcome.recovered is None or outcome.recovered >= said
        said, kills = max(said, outcome.committed), kills + outcome.was_killed
    assert kills, f"{point} was not reached"
    assert_nothing_is_lost(run, said)
