"""Real training processes under SIGKILL at random moments, each with another number of threads: all bits come back."""

from __future__ import annotations

import multiprocessing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.crash import tally
from tests.crash.torch_child import Said, sums, train
from tests.support import campaign

pytestmark = pytest.mark.crash

LIVES, UNTIL = (8, 120) if campaign.is_soak() else (4, 60)
FAULT = "SIGKILL, and another number of threads behind it"
_context = multiprocessing.get_context("forkserver")  # imports torch once; each child is forked from there
_context.set_forkserver_preload(["torch", "torch._dynamo", "tranlogs_torch", "tests.crash.torch_child"])


@cache
def right(threads: int) -> list[int]:
    """The sums of a run without a log, in a process of its own."""
    with _context.Pool(1) as pool:
        return pool.apply(sums, (threads, UNTIL))


def lived(run: Path, threads: int, wanted: int, seconds: float, options: dict[str, Any]) -> list[Said]:
    """What a process says that is killed some seconds after so many words, or ends."""
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=train, args=(sender, str(run), threads, UNTIL, options))
    process.start()
    sender.close()
    said = list[Said]()
    with receiver:
        try:
            while True:
                if len(said) == wanted:
                    process.join(seconds)
                    process.kill()
                said.append(receiver.recv())
        except (EOFError, ConnectionResetError):
            process.join()
    print(threads, process.exitcode, said)
    return said


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", campaign.seeds(1), ids=str)
@pytest.mark.parametrize("options", [{"writer": "thread"}, {"durability": "machine"}, {"log": "weights"}], ids=str)
def test_killed_runs_that_go_on_with_other_threads_are_exact(memory_path: Path, options: dict[str, Any], seed: int) -> None:
    chance, committed = campaign.dice(seed, str(options)), 0
    first = chance.randrange(1, 4)
    expected, said = right(first), list[Said]()
    assert expected[-1] != right(first + 1)[-1], "the number of threads does not matter to this script"
    for life in range(LIVES):
        threads = first if life == 0 else chance.choice([number for number in range(1, 5) if number != first])
        # In its start, in recovery, or behind some steps; the last one trains to the end.
        wanted, seconds = (0, 0.5) if life and chance.random() < 0.2 else (chance.randrange(1, 12), 0.01)
        with tally.trying(FAULT):
            said = lived(memory_path / "run", threads, wanted if life < LIVES - 1 else -1, chance.random() * seconds, options)
            if not said:
                continue
            # The newest unit is computed again, in the loop.
            assert said[0].step >= committed - 1, f"step {committed} was committed, {said[0].step} came back"
            assert said[0].exact is not False
            assert [one for one in said if one.sum != expected[one.step]] == []
        committed = max(committed, said[-1].step)
        tally.note(FAULT, int(life > 0), seconds=said[0].seconds if life else 0)
    assert (said[-1].step, said[-1].exact) == (UNTIL, True)
