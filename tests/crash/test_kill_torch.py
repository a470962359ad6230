"""Real training processes under SIGKILL at random moments, each with another number of threads: all bits come back."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from torch.utils.data import DataLoader, TensorDataset

from tests.crash import tally
from tests.support import campaign
from tranlogs_torch import LoggedOptimizer

pytestmark = pytest.mark.crash

LIVES, UNTIL = (8, 120) if campaign.is_soak() else (4, 60)
FAULT = "SIGKILL, and another number of threads behind it"
_context = multiprocessing.get_context("forkserver")  # imports torch once; each child is forked from there
_context.set_forkserver_preload(["torch", "torch._dynamo", "tranlogs_torch", "tests.crash.test_kill_torch"])


# The script: its bits depend on the number of threads, since it adds up many numbers in each step.


@dataclass(frozen=True, slots=True)
class Said:
    """Where the script is: at a boundary, where it came back to (the first one), or at its end.

    Attributes:
        step: the step.
        sum: of the parameters.
        seconds: that recovery took.
        exact: what the report says.
    """

    step: int
    sum: int
    seconds: float = 0.0
    exact: bool | None = None


class Script:
    """Dropout, a scheduler and a shuffled loader, built alike each time."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 2048), torch.nn.Dropout(0.1))
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.loader = DataLoader(TensorDataset(torch.rand(300, 16)), 64, shuffle=True)

    def step(self, batch: torch.Tensor, scheduler: Any) -> None:
        self.optimizer.zero_grad()
        found = self.model(batch)
        (found / found.square().sum().sqrt()).tanh().sum().backward()
        self.optimizer.step()
        scheduler.step()

    def sum(self) -> int:
        return xxhash.xxh3_64_intdigest(b"".join(one.detach().numpy().tobytes() for one in self.model.parameters()))


def sums(threads: int, until: int) -> list[int]:
    """After each step of a run without a log."""
    torch.set_num_threads(threads)
    script = Script()
    scheduler, found = torch.optim.lr_scheduler.StepLR(script.optimizer, 5, 0.9), [script.sum()]
    while len(found) <= until:
        for (batch,) in script.loader:
            script.step(batch, scheduler)
            found.append(script.sum())
    return found


def train(pipe: Connection, run: str, threads: int, until: int, options: dict[str, Any]) -> None:
    """Come back, and train to a step; the resume is proven, as users have it."""
    os.environ.pop("TRANLOGS_RECHECK", None)
    torch.set_num_threads(threads)
    script, start = Script(), time.monotonic()
    with LoggedOptimizer(script.optimizer, run, script.model, checkpoint_every=7, **options) as optimizer:
        script.optimizer = optimizer
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
        optimizer.track(scheduler=scheduler, loader=script.loader)
        report = optimizer.recover()
        pipe.send(Said(report.step, script.sum(), time.monotonic() - start, report.exact))
        for (batch,) in optimizer.batches(script.loader, until=until):
            step = optimizer.watermarks["step"]
            if report.step < step == optimizer.watermarks["committed"]:
                pipe.send(Said(step, script.sum()))
            script.step(batch, scheduler)
        pipe.send(Said(until, script.sum(), 0.0, optimizer.report.exact))


# Its lives.


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
