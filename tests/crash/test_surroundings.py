"""What is around a trainer changes: the clock jumps, it forks, it comes back with other threads, or its steps are tiny."""

from __future__ import annotations

import json
import multiprocessing
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.crash import tally
from tests.crash.lives import Lives
from tests.crash.threads_child import Said, sums, train
from tests.crash.toy_trainers import Trainers
from tests.support import campaign

pytestmark = pytest.mark.crash

SEEDS = pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)
LIVES = 8
TINY = Path(__file__).with_name("tiny_child.py")
_context = multiprocessing.get_context("forkserver")  # imports torch once; each child is forked from there
_context.set_forkserver_preload(["torch", "torch._dynamo", "tranlogs_torch", "tests.crash.threads_child"])


@SEEDS
def test_a_clock_that_jumps_in_lives_that_are_killed_loses_nothing(trainers: Trainers, memory_path: Path, seed: int) -> None:
    print(f"repeat with TRANLOGS_SEED={seed}")
    chance = random.Random(seed)
    lives = Lives(
        trainers,
        memory_path / "run",
        "the clock jumps by days, in a run that is killed",
        lambda outcome: outcome.recovered is not None,
        chance,
    )
    for _ in range(LIVES):
        assert not lives.live(jumps=chance.randrange(10**6), by_time=chance.random() < 0.5).was_suspended
    lives.end()


@SEEDS
def test_forks_of_trainers_that_are_killed_lose_nothing(trainers: Trainers, memory_path: Path, seed: int) -> None:
    """What a child does to the journal is in vain, and one that stays behind holds nothing."""
    print(f"repeat with TRANLOGS_SEED={seed}")
    chance, fault = random.Random(seed), "forks of a trainer that is killed, its children beside it"
    lives = Lives(trainers, memory_path / "run", fault, lambda outcome: len(outcome.forked) > 0, chance)
    for _ in range(LIVES):
        outcome = lives.live(forks=chance.randrange(10**6))
        with tally.trying(fault):
            assert set(outcome.forked) <= {0}, f"children ended with {outcome.forked}"
    lives.end()
    assert lives.hits


@cache
def right(threads: int, until: int) -> list[int]:
    """The sums of a run without a log, in a process of its own."""
    with _context.Pool(1) as pool:
        return pool.apply(sums, (threads, until))


def test_the_number_of_threads_matters_to_this_script() -> None:
    assert right(1, 120)[-1] != right(2, 120)[-1]


@SEEDS
def test_killed_runs_that_go_on_with_other_threads_are_exact(memory_path: Path, seed: int) -> None:
    print(f"repeat with TRANLOGS_SEED={seed}")
    chance, fault, committed = random.Random(seed), "SIGKILL, and another number of threads behind it", 0
    first = chance.randrange(1, 4)
    expected = right(first, 120)
    for life in range(LIVES):
        threads = first if life == 0 else chance.choice([number for number in range(1, 5) if number != first])
        receiver, sender = _context.Pipe(duplex=False)
        process = _context.Process(target=train, args=(sender, str(memory_path / "run"), threads, 120))
        process.start()
        sender.close()
        said: list[Said] = []
        wanted = chance.randrange(1, 12)
        with tally.trying(fault), receiver:
            try:
                while True:
                    said.append(receiver.recv())
                    if len(said) == wanted:
                        process.join(chance.random() * 0.01)
                        process.kill()
            except (EOFError, ConnectionResetError):
                process.join()
            assert said, f"the trainer ended with {process.exitcode}"
            print(threads, said)
            assert said[0].step >= committed, f"step {committed} was committed, {said[0].step} came back"
            assert [one for one in said if one.sum != expected[one.step]] == []
        committed = said[-1].step
        tally.note(fault, int(life > 0), seconds=said[0].seconds if life else 0)


@SEEDS
def test_tiny_steps_without_a_pause_are_all_there_after_a_kill(memory_path: Path, seed: int) -> None:
    """No queue grows without a bound: what a kill costs is little, however fast the steps come."""
    print(f"repeat with TRANLOGS_SEED={seed}")
    chance, run, committed, paces = random.Random(seed), memory_path / "run", 0, []
    for writer in chance.sample(["direct", "thread"], 2):
        durability = chance.choice(["process", "machine"])
        fault = f"10,000 tiny steps without a pause, then SIGKILL (writer: {writer})"
        command = [sys.executable, str(TINY), str(run), writer, durability]
        with tally.trying(fault), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found, said = (json.loads(process.stdout.readline()) for _ in range(2))
            process.kill()
            assert found["is_right"], found
            assert found["step"] >= committed, f"step {committed} was committed, {found} came back"
            assert said["at risk"] == 0 if writer == "direct" else said["at risk"] <= 300
        paces.append(round(said["pace"]))
        committed = said["committed"]
        tally.note(fault, seconds=found["seconds"])
    print(f"{paces} steps a second")
