"""Several loops in one script: each trains what it says, a kill changes nothing, and the report counts the loop that runs."""

from __future__ import annotations

import copy
import math
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.judge import prove_deaths
from tests.kills.pytorch import Death, Expected, Job, finished, killed, prove
from tests.public.torch.scripts.data import digits
from tests.torch.nets import seed

pytestmark = pytest.mark.crash


def two_phases(job: Job, *, epochs: tuple[int, int]) -> None:
    """Train, take the best weights, and train on at a lower rate."""
    seed()
    x, y = digits(60)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    loader = DataLoader(TensorDataset(x[:40], y[:40]), batch_size=8, shuffle=True)
    optimizer = job.wrap(torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9), model)
    state = optimizer.remember(best=math.inf, weights=None)
    job.start(optimizer, loader=loader)
    for phase, count in enumerate(epochs):
        for epoch in optimizer.epochs(count, loader):
            for rows, labels in epoch:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(rows), labels).backward()
                optimizer.step()
                job.at("batch")
            with torch.no_grad():
                loss = nn.functional.cross_entropy(model(x[40:]), y[40:]).item()
            job.print(f"phase {phase}, epoch {int(epoch)}: {loss}")
            if phase == 0 and loss < state.best:
                state.best, state.weights = loss, copy.deepcopy(model.state_dict())
            job.at("epoch end")
        if phase == 0:
            model.load_state_dict(state.weights)
            for group in optimizer.param_groups:
                group["lr"] = 0.01
    job.keep(model=model, optimizer=optimizer, state=state)
    optimizer.close()


@pytest.mark.parametrize("epochs", [(3, 2), (2, 4)], ids=["shorter", "longer"])
def test_a_second_loop_counts_from_its_own_beginning(epochs: tuple[int, int], tmp_path: Path) -> None:
    """Also one that is longer than the first, which a script that counts epochs over the run would write for the rest."""
    prove(partial(two_phases, epochs=epochs), tmp_path / f"phases-{epochs[0]}-{epochs[1]}")


def test_a_kill_around_the_code_between_two_loops_changes_nothing(tmp_path: Path) -> None:
    """At the end of the first loop, in the first batch of the second one, and behind that."""
    script = partial(two_phases, epochs=(3, 2))
    twin = [finished(script, tmp_path / "twin")]
    deaths = [Death("batch", number=13), Death("epoch end"), Death("batch", number=2), Death("batch", number=3)]
    prove_deaths(script, tmp_path / "killed", twin, deaths, Expected())


class Sums(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences up to a length, and their sums."""

    def __init__(self, longest: int) -> None:
        generator = torch.Generator().manual_seed(longest)
        lengths = torch.randint(2, longest, (4 * longest,), generator=generator)
        self.rows = [torch.randn(int(length), 3, generator=generator) for length in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[i], self.rows[i].sum()


def padded(rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True), torch.stack([label for _, label in rows])


def curriculum(job: Job, *, longest: tuple[int, ...] = (5, 7, 9)) -> None:
    """Train two epochs on sequences of each length."""
    seed()
    net = nn.ModuleDict({"body": nn.GRU(3, 6, batch_first=True), "head": nn.Linear(6, 1)})
    loaders = {f"up_to_{n}": DataLoader(Sums(n), batch_size=4, shuffle=True, collate_fn=padded) for n in longest}
    optimizer = job.wrap(torch.optim.RMSprop(net.parameters(), lr=2e-3), net)
    job.start(optimizer, **loaders)
    for name, loader in loaders.items():
        for epoch in optimizer.epochs(2, loader):
            for x, y in epoch:
                loss = nn.functional.mse_loss(net["head"](net["body"](x)[0][:, -1]).squeeze(1), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                job.at("batch")
            job.print(f"{name}, epoch {int(epoch)}: {loss.item()}")
            torch.save(net.state_dict(), f"{name}-{int(epoch)}.pt")
    job.keep(net=net, optimizer=optimizer)
    optimizer.close()


def test_a_curriculum_goes_on_in_its_stage(tmp_path: Path) -> None:
    prove(curriculum, tmp_path / "curriculum")


def test_the_report_counts_epochs_and_batches_of_the_loop_that_runs(tmp_path: Path) -> None:
    """As that of a script that has this stage alone."""
    positions = []
    for name, longest in (("all", (5, 7, 9)), ("last", (9,))):
        script, folder = partial(curriculum, longest=longest), tmp_path / name
        earlier = sum(2 * length for length in longest[:-1])  # batches of earlier stages
        assert killed(script, folder, Death("batch", number=earlier + 9 + 4)) == -signal.SIGKILL  # amid its second epoch
        positions.append(finished(script, folder, folder / "run").position)
    assert [loop for loop, _, _ in positions] == [3, 1]
    assert positions[0][1:] == positions[1][1:]
    assert positions[1][1] is not None
