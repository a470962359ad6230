"""Training processes under SIGKILL, each with another number of threads: all bits come back, and no committed step is lost."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from torch.utils.data import DataLoader, TensorDataset

from tests.crash import tally
from tests.kills.pytorch import Job, finished, prove
from tests.support import campaign
from tests.torch.nets import seed

pytestmark = pytest.mark.crash

UNTIL = 60
FAULT = "SIGKILL, and another number of threads behind it"


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def train(job: Job, *, threads: tuple[int, ...]) -> None:
    """Train with dropout, a scheduler and a shuffled loader; the bits depend on the number of threads, since each step adds up
    many numbers. Each life has the next number of threads."""
    torch.set_num_threads(threads[len(lines_of(job.folder / "deaths"))])
    seed()
    model = torch.nn.Sequential(torch.nn.Linear(16, 2048), torch.nn.Dropout(0.1))
    loader = DataLoader(TensorDataset(torch.rand(300, 16)), 64, shuffle=True)
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), 0.01), model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    job.start(optimizer, scheduler=scheduler, loader=loader)
    committed = job.folder / "committed"
    if job.reports:
        least = int(lines_of(committed)[-1]) - 1 if committed.exists() else 0  # the newest unit is computed again
        assert job.reports[0].step >= least, f"step {least + 1} was committed, {job.reports[0].step} came back"
    for number, (batch,) in optimizer.batches(loader, until=UNTIL, enumerate=True):
        if job.run is not None:
            with committed.open("a") as file:
                file.write(f"{optimizer.watermarks['committed']}\n")
        job.print(number, xxhash.xxh3_64_hexdigest(b"".join(one.detach().numpy().tobytes() for one in model.parameters())))
        optimizer.zero_grad()
        found = model(batch)
        (found / found.square().sum().sqrt()).tanh().sum().backward()
        job.at("batch")
        optimizer.step()
        scheduler.step()
    job.keep(model=model, optimizer=optimizer, scheduler=scheduler)
    optimizer.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{"writer": "thread"}, {"durability": "machine"}, {"log": "weights"}], ids=str)
def test_killed_runs_that_go_on_with_other_threads_are_exact(tmp_path: Path, options: dict[str, Any]) -> None:
    """Killed in a step, in recovery and at any moment; each line that is printed tells the parameters."""
    chance = campaign.dice(str(options))
    first = chance.randrange(1, 4)
    others = [count for count in range(1, 5) if count != first]
    threads = (first, *(chance.choice(others) for _ in range(9)))
    ends = [finished(partial(train, threads=(count,)), tmp_path / f"with{count}") for count in (first, first + 1)]
    assert ends[0].differences(ends[1]), "the number of threads does not matter to this script"
    with tally.trying(FAULT):
        prove(partial(train, threads=threads), tmp_path / f"by-{'-'.join(options)}", **{"log": "gradients"} | options)
    deaths = [lines_of(folder / "deaths") for folder in tmp_path.glob("by-*/killed*")]
    tally.note(FAULT, len(list(itertools.chain(*deaths))))
