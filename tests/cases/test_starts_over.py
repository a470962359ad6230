"""What starts over in each process is named, before any crash and after it, and the report says so."""

from __future__ import annotations

import copy
import json
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.judge import demand_quiet, finish, finished, killed, prove_deaths
from tests.kills.pytorch import Death, Expected, Job, Script
from tests.torch.nets import seed

pytestmark = pytest.mark.crash

curve: dict[str, list[float]] = {"loss": []}
counts = [0, 0]


def demand_named(script: Script, folder: Path, expected: Expected, deaths: Sequence[Death]) -> None:
    """Demand that an uninterrupted run warns of what is not kept, and that a resume names it."""
    twin = finish(script, folder / "twin")
    whole = finish(script, folder / "whole", folder / "whole" / "run")
    assert whole[0].differences(twin[0]) == []
    demand_quiet(whole, folder / "whole" / "run", expected)
    last = prove_deaths(script, folder / "killed", twin, deaths, expected)
    assert last[0].differences(twin[0]), "nothing was lost, so that this script shows nothing"


def history(job: Job) -> None:
    """A function that trains appends to a list of the module, which is written at the end."""
    seed()
    x = torch.randn(40, 6)
    model = nn.Linear(6, 1)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    optimizer = job.wrap(torch.optim.Adam(model.parameters(), lr=1e-2), model)

    def train_on(rows: torch.Tensor, wanted: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), wanted)
        loss.backward()
        optimizer.step()
        curve["loss"].append(loss.item())
        counts[int(loss.item() > 1)] += 1

    job.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(5, loader):
        for rows, wanted in epoch:
            train_on(rows, wanted)
            job.at("batch")
        job.print(f"epoch {int(epoch)}: {len(curve['loss'])} points, {counts}")
    Path("curve.json").write_text(json.dumps(curve))
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


def test_a_list_of_the_module_that_a_function_appends_to_is_named(tmp_path: Path) -> None:
    """The state is exact, and the word for it says that this is not all: a file that the script writes lacks what was lost."""
    whole = finish(history, tmp_path / "whole", tmp_path / "whole" / "run")
    demand_quiet(whole, tmp_path / "whole" / "run", Expected(warns=("curve", "counts")))
    assert killed(history, tmp_path / "killed", Death("batch", number=13)) == -signal.SIGKILL
    last = finished(history, tmp_path / "killed", tmp_path / "killed" / "run")
    assert last.exact is True
    assert any("curve" in note and "counts" in note for note in last.notes), last.notes
    assert last.recheck == "equal"
    assert {name for name in last.files if last.files[name] != whole[0].files.get(name)} == {"curve.json"}


class Average(nn.Module):
    """An average of weights, whose decay grows with the number of updates; that number is not in its state_dict."""

    def __init__(self, model: nn.Module, every: int) -> None:
        super().__init__()
        self.shadow, self.updates, self.every = copy.deepcopy(model).requires_grad_(False), 0, every

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.updates += 1
        if self.updates % self.every == 0:
            for mean, value in zip(self.shadow.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 1 - min(0.999, (1 + self.updates) / (10 + self.updates)))


def averaged(job: Job, *, every: int) -> None:
    """Train, and average the weights."""
    seed()
    x = torch.randn(48, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 4))
    average = Average(model, every)
    loader = DataLoader(TensorDataset(x), batch_size=8, shuffle=True)
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), lr=2e-3), model)
    job.start(optimizer, loader=loader, average=average)
    for epoch in optimizer.epochs(5, loader):
        for (rows,) in epoch:
            noise = torch.randn_like(rows)
            loss = nn.functional.mse_loss(model(rows + noise), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)
            job.at("batch")
        torch.save(average.state_dict(), f"average{int(epoch)}.pt")
    job.keep(model=model, optimizer=optimizer, average=average)
    optimizer.close()


@pytest.mark.parametrize(("every", "exact"), [(1, False), (10, None)])
def test_a_counter_that_is_not_in_the_state_dict_of_a_tracked_object_is_named(
    every: int, exact: bool | None, tmp_path: Path
) -> None:
    """The unit that is computed again comes out otherwise where each update counts; else it is equal, and proves nothing."""
    expected = Expected(exact=exact, because="updates", is_equal=False, warns=("updates",))
    demand_named(partial(averaged, every=every), tmp_path, expected, [Death("batch", number=14)])


def test_a_finished_run_that_writes_its_results_again_names_what_they_lack(tmp_path: Path) -> None:
    """Its loop does not run, so what only the body sets is unset, and the list that is written is empty."""
    first = finished(history, tmp_path, tmp_path / "run")
    again = finished(history, tmp_path, tmp_path / "run")
    assert len(json.loads(first.files["curve.json"])["loss"]) == 25
    assert again.files["curve.json"] == b'{"loss": []}'
    assert next(note for note in again.notes if "over at each start" in note).startswith("curve and counts start over")
    assert any("so `epoch`, `rows` and `wanted` are unset" in line for line in again.heard.lines), again.heard.lines
