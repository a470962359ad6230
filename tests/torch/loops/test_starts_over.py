"""What starts over in each process is named, before any crash and after it, and the report says so."""

from __future__ import annotations

import copy
import itertools
import json
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.judge import demand_quiet, finish, finished, killed, prove_deaths
from tests.kills.pytorch import Death, Expected, Job, Script
from tests.support.campaign import in_soak
from tests.torch.nets import seed
from tests.torch.scripts import built, stepped

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
    folder, run = tmp_path / "killed", tmp_path / "killed" / "run"
    whole = finish(history, tmp_path / "whole", tmp_path / "whole" / "run")
    demand_quiet(whole, tmp_path / "whole" / "run", Expected(warns=("curve", "counts")))
    assert killed(history, folder, Death("batch", number=13)) == -signal.SIGKILL
    last = finished(history, folder, run)
    assert (last.exact, last.recheck) == (True, "equal")
    assert any("curve" in note and "counts" in note for note in last.notes), last.notes
    assert {name for name in last.files if last.files[name] != whole[0].files.get(name)} == {"curve.json"}
    again = finished(history, folder, run)  # its loop does not run, and the list that is written is empty
    assert again.files["curve.json"] == b'{"loss": []}'
    assert next(note for note in again.notes if "over at each start" in note).startswith("curve and counts start over")
    assert not any("unset" in line for line in again.heard.lines), "nothing that only the body sets is read behind the loop"


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


@pytest.mark.parametrize(("every", "exact"), [(1, False), in_soak(10, None)])
def test_a_counter_that_is_not_in_the_state_dict_of_a_tracked_object_is_named(
    every: int, exact: bool | None, tmp_path: Path
) -> None:
    """The unit that is computed again comes out otherwise where each update counts; else it is equal, and proves nothing."""
    expected = Expected(exact=exact, because="updates", is_equal=False, warns=("updates",))
    demand_named(partial(averaged, every=every), tmp_path, expected, [Death("batch", number=14)])


def best(job: Job) -> None:
    """Save the weights before the loop, and those of the best epoch in it; go on with the latter."""
    model, loader, optimizer = built(job)
    state = optimizer.remember(best=0.0)
    job.start(optimizer, loader=loader)
    torch.save(model.state_dict(), "best.pt")
    for epoch in optimizer.epochs(3, loader):
        losses = [stepped(job, model, optimizer, rows) for (rows,) in epoch]
        if epoch == 0:
            state.best = max(losses)
            torch.save(model.state_dict(), "best.pt")
    optimizer.close()
    model.load_state_dict(torch.load("best.pt"))
    job.keep(model=model)


def reading(job: Job, *, has_first: bool) -> None:
    """Save behind the first loop what its last turn has set, and train on in a second one."""
    model, loader, optimizer = built(job)
    job.start(optimizer, loader=loader)
    loss = 0.0
    if has_first:
        number = -1
    for epoch in optimizer.epochs(2, loader):
        for (rows,) in epoch:
            loss = stepped(job, model, optimizer, rows)
        number = int(epoch)
    try:
        Path("between.json").write_text(json.dumps([number, loss]))
    except UnboundLocalError:
        Path("between.json").write_text("number is unset")
    for epoch in optimizer.epochs(2, loader):
        for (rows,) in epoch:
            stepped(job, model, optimizer, rows)
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


# What is named, before a crash and where a script resumes after it, and which files differ then.
RESUMED: dict[str, tuple[Script, str, tuple[str, ...]]] = {
    "saved before the loop": (best, "state_dict() of the model was read before a loop", ("file best.pt",)),
    "read behind a loop": (partial(reading, has_first=True), "read behind a loop that sets them", ("file between.json",)),
    "unset behind a loop": (partial(reading, has_first=False), "read behind a loop that sets them", ("file between.json",)),
}


@pytest.mark.parametrize("name", [in_soak(name) if name.startswith("unset") else name for name in RESUMED])
def test_what_a_resume_does_otherwise_is_named_at_once(name: str, tmp_path: Path) -> None:
    script, text, different = RESUMED[name]
    twin = finished(script, tmp_path / "twin")
    whole = finish(script, tmp_path / "whole", tmp_path / "whole" / "run")
    assert whole[0].differences(twin) == []
    demand_quiet(whole, tmp_path / "whole" / "run", Expected(warns=(text,)))
    assert killed(script, tmp_path / "killed", Death("batch", number=14)) == -signal.SIGKILL
    last = finished(script, tmp_path / "killed", tmp_path / "killed" / "run")
    assert set(different) <= set(last.differences(twin))
    assert any(text in note for note in last.notes), last.notes


class Stopping:
    """Early stopping, as many scripts have it."""

    def __init__(self) -> None:
        self.best, self.counter = 1e9, 0

    def __call__(self, loss: float) -> None:
        self.best, self.counter = (loss, 0) if loss < self.best else (self.best, self.counter + 1)


class KeptStopping(Stopping):
    """The same with a state."""

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Counting(torch.utils.data.Dataset[Any]):
    """Gives what depends on how much it has given."""

    def __init__(self) -> None:
        self.rows, self.served = torch.randn(40, 6, generator=torch.Generator().manual_seed(5)), 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        self.served += 1
        return (self.rows[index] * (1 + self.served / 100),)


class Saver:
    """Has the count of a dataset in its own state."""

    def __init__(self, data: Counting) -> None:
        self.data = data

    def state_dict(self) -> dict[str, Any]:
        return {"served": self.data.served}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.data.served = state["served"]


def reached(job: Job, *, keeps: bool) -> None:
    """A dataset behind a subset, an object in a list, an object that stops, an iterator and the number of a batch."""
    model, _, optimizer = built(job)
    data = Counting()
    loader = DataLoader(torch.utils.data.Subset(data, range(36)), 4, shuffle=True)
    stoppers, stopper, counter = [Stopping()], Stopping(), itertools.count()
    if keeps:
        stoppers, stopper = [KeptStopping()], KeptStopping()
        job.start(optimizer, loader=loader, saver=Saver(data), first=stoppers[0], stopper=stopper)
    else:
        job.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(3, loader):
        for i, (rows,) in epoch.enumerate() if keeps else enumerate(epoch):
            if i == 8:
                break
            loss = stepped(job, model, optimizer, rows)
            for each in (*stoppers, stopper):
                each(loss)
            if not keeps:
                next(counter)
    job.keep(model=model, best=stopper.best, served=data.served)
    optimizer.close()


def test_what_a_loop_reaches_through_others_is_named_with_lines_that_keep_it(tmp_path: Path) -> None:
    """The data depend on the count here, so that the unit that is computed again differs."""
    for keeps in (False, True):
        script, folder = partial(reached, keeps=keeps), tmp_path / str(keeps)
        twin = finished(script, folder / "twin")
        assert killed(script, folder, Death("batch", number=12)) == -signal.SIGKILL
        last = finished(script, folder, folder / "run")
        if keeps:
            assert (last.differences(twin), last.exact, last.notes) == ([], True, [])
            continue
        assert last.exact is False
        for text in (
            "counter starts over",
            "stoppers[0] (Stopping) starts over",
            "data (Counting) starts over at each start: training changes served",
            "optimizer.remember(counter=0)",
            "stoppers_0=stoppers[0]",
            "stopper=stopper",
            "data=data",
        ):
            assert any(text in note for note in last.notes), (text, last.notes)


def outside(job: Job) -> None:
    """A `while` of the script's own, without any loop or loader of the run."""
    model, loader, optimizer = built(job)
    state = optimizer.remember(number=0)
    (rows,) = next(iter(loader))
    job.start(optimizer)
    since = 0
    while state.number < 16:
        stepped(job, model, optimizer, rows)
        state.number += 1
        since += 1
    job.keep(model=model, since=since)
    optimizer.close()


def test_a_variable_of_a_loop_of_the_script_s_own_is_named(tmp_path: Path) -> None:
    assert killed(outside, tmp_path, Death("batch", number=9)) == -signal.SIGKILL
    last = finished(outside, tmp_path, tmp_path / "run")
    assert any("since starts over" in note and "optimizer.remember(" in note for note in last.notes), last.notes
