"""A trainer dies by SIGKILL at every fault point of the write path, and again as it comes back; nothing committed is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.crash.toy_trainers import SIZES, UNTIL, Trainers, expected, state_sum
from tests.support import campaign
from tests.support.toy import open_toy
from tests.support.verify import verify_run
from tranlogs import KeepLatest
from tranlogs.base.config import JournalConfig
from tranlogs.base.failpoints import POINTS
from tranlogs.verify import Problem

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("small_segments")]

IN_RECOVERY = [point for point in POINTS if point.startswith("recovery.")]
IN_TRAINING = [point for point in POINTS if point.partition(".")[0] not in ("recovery", "ship", "pull")]


def assert_nothing_is_lost(run: Path, said: int, *, keep: int = 2, between: Callable[[], None] = lambda: None) -> None:
    """Recovery lands at or behind the last committed step, on the right bits, and the run goes on and finishes right.

    `between`: what else is done to the run, before each recovery and at the end.
    """
    for until in (UNTIL + 2, UNTIL + 3):
        between()
        trainer = open_toy(run, sizes=SIZES, config=JournalConfig(segment_bytes=1 << 20), retention=KeepLatest(keep))
        report = trainer.recover()
        assert report.step >= said, f"step {said} was committed, recovery landed on {report.step}"
        assert report.exact
        assert state_sum(trainer.state) == expected(report.step)
        trainer.train(until)
        trainer.journal.close()
        assert state_sum(trainer.state) == expected(until)
        said = until
    between()
    assert [found for found in verify_run(run) if isinstance(found, Problem)] == []


@cache
def passed(trainers: Trainers, folder: Path, writer: str, until: int = UNTIL) -> dict[str, int]:
    """How often a run that is not killed passes each point, at the least: the threads' order is not the same each time."""
    runs = [trainers.run(folder / f"counted-{writer}-{until}-{nth}", writer=writer, until=until) for nth in range(2)]
    assert all(run.status == 0 for run in runs)
    return {point: min(run.counts[point] for run in runs) for point in runs[0].counts}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counted")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("writer", ["direct", "thread"])
def test_a_run_passes_every_point_of_the_write_path(trainers: Trainers, counted: Path, writer: str) -> None:
    """In a run long enough for several spare files to be deleted, whatever the threads' order."""
    counts = passed(trainers, counted, writer, 2 * UNTIL)
    assert {point: counts[point] for point in IN_TRAINING if counts[point] < 2} == {}
    assert {point: counts[point] for point in IN_RECOVERY if counts[point]} == {}


@pytest.mark.sampled(28)
@pytest.mark.parametrize(
    ("point", "when", "writer"),
    campaign.pairwise(IN_TRAINING, ["first", "second", "middle", "late"], ["direct", "thread"]),
)
def test_a_kill_at_a_fault_point_loses_nothing_committed(
    trainers: Trainers, counted: Path, memory_path: Path, point: str, writer: str, when: str
) -> None:
    count = passed(trainers, counted, writer)[point]
    for attempt in range(3):
        run = memory_path / f"run{attempt}"
        nth = {"first": 1, "second": 2, "middle": max(1, count // 2), "late": max(1, count * 4 // 5)}[when]
        outcome = trainers.run(run, failpoints=f"{point}=kill@{nth}", writer=writer)
        if outcome.was_killed:
            break
        count = min(count, outcome.counts[point])  # how many spare files are deleted hangs on the threads' order
    assert outcome.was_killed, f"{point} was not reached {nth} times, but {count} times before"
    assert_nothing_is_lost(run, outcome.committed)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("point", "writer"),
    campaign.each_once([*IN_RECOVERY, *(p for p in IN_TRAINING if not p.startswith("boundary."))], ["direct", "thread"]),
)
def test_a_second_kill_while_the_run_comes_back_loses_nothing(
    trainers: Trainers, memory_path: Path, point: str, writer: str
) -> None:
    """The first one in the middle of training; then the process that takes over dies, twice, at the point."""
    run = memory_path / "run"
    outcome = trainers.run(run, failpoints="log.after_commit=kill@40", writer=writer)
    assert outcome.was_killed
    said, kills = outcome.committed, 0
    for nth in (1, 1, 2):
        outcome = trainers.run(run, failpoints=f"{point}=kill@{nth}", writer=writer)
        assert outcome.was_killed or outcome.counts[point] < nth  # it came to the end
        assert outcome.recovered is None or outcome.recovered >= said
        said, kills = max(said, outcome.committed), kills + outcome.was_killed
    assert kills, f"{point} was not reached"
    assert_nothing_is_lost(run, said)
