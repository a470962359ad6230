"""Wind a run back, train on, wind back again, with kills in between: each timeline is what it was, to the bit."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.timelines import Fork, checkpoints, expected
from tests.crash.toy_trainers import Trainers
from tests.support import campaign
from tests.support.verify import verify_run
from tranlogs.verify import Problem

pytestmark = pytest.mark.crash

LIVES = 14


@pytest.fixture(scope="module")
def trainers() -> Iterator[Trainers]:
    with closing(Trainers(compares=False)) as made:
        yield made


@pytest.mark.parametrize("seed", campaign.seeds(10), ids=str)
@pytest.mark.parametrize("writer", ["direct", "thread"])
def test_runs_are_wound_back_and_killed(trainers: Trainers, memory_path: Path, writer: str, seed: int) -> None:
    print(f"repeat with TRANLOGS_SEED={seed}")
    chance, run = random.Random(seed), memory_path / "run"
    forks: dict[int, Fork] = {}
    timeline, step = 1, 0  # what is known to be committed
    for life in range(LIVES):
        rewind, factor, newer = None, 1.0, timeline
        if step and chance.random() < 0.5 and (lowest := min(checkpoints(run), default=0)) < step:
            rewind, factor = chance.randrange(lowest, step), chance.uniform(0.5, 2.0)
        kill_after = (chance.randrange(1, 12), chance.random() * 0.004) if life < LIVES - 1 else None
        outcome = trainers.run(
            run,
            kill_after=kill_after,
            until=step + 12,
            writer=writer,
            rewind=rewind,
            factor=factor,
            keep=3,
            settles=chance.random() < 0.5,
        )
        print(life, "was", (timeline, step), "wanted", rewind, factor, "->", outcome)
        assert outcome.status in (0, -signal.SIGKILL)
        if outcome.recovered is None:
            continue
        newer = outcome.timeline
        if rewind is None:
            assert newer in (timeline, timeline + 1)
            if newer == timeline:
                assert outcome.recovered >= step
            step = outcome.recovered
            assert outcome.state == expected(forks, timeline, outcome.recovered)
            step = max(step, outcome.committed)
            continue
        assert outcome.recovered == rewind
        assert outcome.state == expected(forks, timeline, rewind)
        if outcome.committed > rewind:
            forks[newer] = Fork(timeline, rewind, factor)
            timeline, step = newer, outcome.committed
            continue
        # It died before a step of the new timeline was committed: the next one finds it begun, or does not.
        found = trainers.run(run, until=0, writer=writer, keep=3)
        assert found.recovered is not None
        print("then", found)
        if found.timeline == timeline:
            assert found.recovered >= step
            step = found.recovered
        else:
            assert found.timeline == newer
            assert found.recovered >= rewind
            forks[newer] = Fork(timeline, rewind, factor if found.recovered > rewind else 1.0)
            timeline, step = newer, found.recovered
        assert found.state == expected(forks, timeline, step)
    assert forks
    assert [finding for finding in verify_run(run) if isinstance(finding, Problem)] == []
