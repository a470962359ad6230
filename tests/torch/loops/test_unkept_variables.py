"""Variables of the script's loop that start over after a crash are named once, with the line that keeps them."""

from __future__ import annotations

import itertools
import shutil
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from tests.torch.lab import Attempt, in_child, prove_exact
from tests.torch.loops import recheck_scripts as scripts
from tests.torch.loops.recheck_scripts import Script, _begin, _loss, _step

pytestmark = pytest.mark.crash


def early_stopping(attempt: Attempt, *, tracks: bool = True) -> None:
    """The best epoch, a counter of bad ones, and a curve; none of them has a say in the newest unit."""
    model, optimizer, loader = _begin(attempt)
    state = (optimizer.remember if tracks else SimpleNamespace)(best=float("inf"), bad=0, curve=[])
    attempt.start(optimizer)
    for epoch in optimizer.epochs(scripts.EPOCHS, loader):
        total = _train_epoch(attempt, model, optimizer, epoch)
        state.bad = 0 if total < state.best else state.bad + 1
        state.best = min(state.best, total)
        state.curve.append(total)
        if state.bad > 9:
            break
    attempt.keep(model=model)
    optimizer.close()


def _train_epoch(attempt: Attempt, model: Any, optimizer: Any, epoch: Any) -> float:
    loss = None
    for batch in epoch:
        _step(attempt, model, optimizer, batch)
        loss = _loss(model, batch).item()
    return loss or 0.0


def plain_variables(attempt: Attempt) -> None:
    """The same as plain variables."""
    model, optimizer, loader = _begin(attempt)
    attempt.start(optimizer)
    best, curve = float("inf"), []
    for epoch in optimizer.epochs(scripts.EPOCHS, loader):
        total = 0.0
        for batch in epoch:
            _step(attempt, model, optimizer, batch)
            total += _loss(model, batch).item()
        best = min(best, total)
        curve.append(total)
    attempt.keep(model=model, best=best)
    optimizer.close()


def copied(attempt: Attempt) -> None:
    """Variables that begin with what the run has, or are copied into it."""
    model, optimizer, loader = _begin(attempt)
    state = optimizer.remember(number=0, total=0.0)
    attempt.start(optimizer)
    number, total = state.number, state.total
    for batch in optimizer.batches(loader, until=scripts.TURNS):
        _step(attempt, model, optimizer, batch)
        number += 1
        total = total + 1.0
        state.total = total
        state.number += 1
    attempt.keep(model=model, number=number)
    optimizer.close()


class EarlyStopping:
    """Early stopping, as many scripts have it."""

    def __init__(self) -> None:
        self.best, self.counter, self.is_over = float("inf"), 0, False

    def __call__(self, loss: float) -> None:
        if loss < self.best:
            self.best, self.counter = loss, 0
        else:
            self.counter += 1
            self.is_over = self.counter > 9


class KeptStopping(EarlyStopping):
    """The same with a state."""

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def stopped(attempt: Attempt, *, keeps: str = "") -> None:
    """An object of a class decides when to stop."""
    model, optimizer, loader = _begin(attempt)
    stopper = KeptStopping() if keeps else EarlyStopping()
    if keeps == "remembered":
        optimizer.remember(stopper=stopper)
    attempt.start(optimizer, **({"stopper": stopper} if keeps == "tracked" else {}))
    for epoch in optimizer.epochs(scripts.EPOCHS, loader):
        stopper(_train_epoch(attempt, model, optimizer, epoch))
        if stopper.is_over:
            break
    attempt.keep(model=model)
    optimizer.close()


class Trainer:
    """An object that trains, and counts the steps in a method that its loop calls."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.n = attempt, 0
        self.model, self.optimizer, self.loader = _begin(attempt)
        attempt.start(self.optimizer)

    def step(self, batch: Any) -> None:
        """Train a batch."""
        self.n += 1
        _step(self.attempt, self.model, self.optimizer, batch)

    def fit(self) -> None:
        """Iterate."""
        for batch in self.optimizer.batches(self.loader, until=scripts.TURNS):
            self.step(batch)
        self.attempt.keep(model=self.model)
        self.optimizer.close()


def turns(attempt: Attempt) -> None:
    """Nothing but the loop of `steps`, where steps are taken in a function, and a step count of the script's own."""
    model, optimizer, loader = _begin(attempt)
    attempt.start(optimizer)
    batch, count = next(iter(loader)), 0
    for _ in optimizer.steps(scripts.TURNS, stateless=True):
        _step(attempt, model, optimizer, batch)
        count += 1
    attempt.keep(model=model, count=count)
    optimizer.close()


def outside(attempt: Attempt) -> None:
    """A `while` of the script's own, without any loop or loader of the run."""
    model, optimizer, loader = _begin(attempt)
    state = optimizer.remember(number=0)
    batch = next(iter(loader))
    attempt.start(optimizer)
    since = 0
    while state.number < scripts.TURNS:
        _step(attempt, model, optimizer, batch)
        state.number += 1
        since += 1
    attempt.keep(model=model)
    optimizer.close()


class Counting(Dataset[Any]):
    """A dataset that counts what it has given."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(5)
        self.rows, self.served = torch.randn(20, 6, generator=draw), 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.served += 1
        return self.rows[index], self.rows[index].sum(0, keepdim=True) * (1 + self.served / 100)


class KeptCounting(Counting):
    """The same with a state."""

    def state_dict(self) -> dict[str, Any]:
        return {"served": self.served}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.served = state["served"]


class Saver:
    """Has the count of a dataset in its own state."""

    def __init__(self, data: Counting) -> None:
        self.data = data

    def state_dict(self) -> dict[str, Any]:
        return {"served": self.data.served}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.data.served = state["served"]


def counted(attempt: Attempt, *, keeps: str) -> None:
    """The data depend on how many of them were given."""
    model, optimizer, _ = _begin(attempt)
    data = KeptCounting() if keeps == "data" else Counting()
    loader = DataLoader(Subset(data, range(18)), 4, shuffle=True)
    attempt.start(optimizer, **{"data": {"data": data}, "saver": {"saver": Saver(data)}}.get(keeps, {}))
    for batch in optimizer.batches(loader, until=scripts.TURNS):
        _step(attempt, model, optimizer, batch)
    attempt.keep(model=model, served=data.served)
    optimizer.close()


def reached(attempt: Attempt) -> None:
    """A dataset, an object in a list and an iterator count."""
    model, optimizer, _ = _begin(attempt)
    data = Counting()
    loader = DataLoader(Subset(data, range(18)), 4, shuffle=True)
    attempt.start(optimizer)
    stoppers, counter = [EarlyStopping()], itertools.count()
    for batch in optimizer.batches(loader, until=scripts.TURNS):
        _step(attempt, model, optimizer, batch)
        next(counter)
        for stopper in stoppers:
            stopper(1.0)
    attempt.keep(model=model)
    optimizer.close()


def numbered(attempt: Attempt, *, true: bool = False) -> None:
    """The number of a batch of an epoch decides when that ends."""
    model, optimizer, loader = _begin(attempt)
    attempt.start(optimizer)
    for epoch in optimizer.epochs(scripts.EPOCHS, loader):
        if true:
            for i, batch in epoch.enumerate():
                if i >= scripts.BATCHES - 1:
                    break
                _step(attempt, model, optimizer, batch)
        else:
            for i, batch in enumerate(epoch):
                if i >= scripts.BATCHES - 1:
                    break
                _step(attempt, model, optimizer, batch)
    attempt.keep(model=model)
    optimizer.close()


def accumulated(attempt: Attempt) -> None:
    """The number of a batch of a tracked loader decides when a step is taken."""
    model, optimizer, loader = _begin(attempt)
    attempt.start(optimizer, loader=loader)
    for _ in range(scripts.EPOCHS):
        for i, batch in enumerate(loader):
            _loss(model, batch).backward()
            attempt.tick()
            if (i + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    attempt.keep(model=model)
    optimizer.close()


def printed(attempt: Attempt) -> None:
    """The number of a batch is printed only."""
    model, optimizer, loader = _begin(attempt)
    attempt.start(optimizer, loader=loader)
    for _ in range(scripts.EPOCHS):
        for i, batch in enumerate(loader):
            _step(attempt, model, optimizer, batch)
            if i % 2 == 0:
                print(i)
    attempt.keep(model=model)
    optimizer.close()


def resumed(script: Script, run: Path, tick: int, caplog: pytest.LogCaptureFixture) -> tuple[list[str], Any]:
    """Kill a script at a tick and start it again; return what is said of variables, and the report."""
    status = in_child(lambda: script(Attempt(run, tick)))
    assert status == -signal.SIGKILL
    caplog.clear()
    attempt = Attempt(run)
    script(attempt)
    logged = [record.getMessage() for record in caplog.records if "over at each start" in record.getMessage()]
    report = attempt.final_report()
    said = [note for note in report.notes if "over at each start" in note]
    assert {text.partition(": ")[2] for text in logged} <= set(said)
    at_once = [note for note in attempt.reports[0].notes if "over at each start" in note]
    assert len(logged) + len(at_once) == len(said), "each is logged, or in the report of recover()"
    shutil.rmtree(run)
    return said, report


UNKEPT: dict[str, tuple[Script, str]] = {
    "attributes of an object": (partial(early_stopping, tracks=False), "state.best and state.curve start over"),
    "variables": (plain_variables, "best and curve start over"),
    "an object of a class": (
        stopped,
        "stopper (EarlyStopping) starts over at each start: training changes best",
    ),
    "what a method counts": (lambda attempt: Trainer(attempt).fit(), "self.n starts over"),
    "a count": (turns, "count starts over"),
    "a loop of the script's own": (outside, "since starts over"),
}


@pytest.mark.parametrize("name", UNKEPT)
@pytest.mark.parametrize("rechecks", ["1", "0"])
def test_variables_that_start_over_are_named_once(
    name: str, rechecks: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the unit that is computed again equals the log, and where none is."""
    monkeypatch.setenv("TRANLOGS_RECHECK", rechecks)
    script, text = UNKEPT[name]
    said, report = resumed(script, tmp_path / "run", 8, caplog)
    assert len(said) == 1
    assert text in said[0]
    line = {"an object of a class": "optimizer.track(stopper=stopper)"}.get(name, "optimizer.remember(")
    assert line in said[0]
    assert report.recheck == ("equal" if rechecks == "1" else "")
    assert report.exact is True or name == "a loop of the script's own"


KEPT: dict[str, Script] = {
    "early_stopping": early_stopping,
    "copied": copied,
    "tracked": partial(stopped, keeps="tracked"),
    "remembered": partial(stopped, keeps="remembered"),
    "tracked data": partial(counted, keeps="data"),
    "saved data": partial(counted, keeps="saver"),
    "true numbers": partial(numbered, true=True),
    "printed numbers": printed,
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [*scripts.PROVEN, *KEPT])
def test_nothing_is_said_of_loops_whose_state_is_in_the_run(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")
    script = {**KEPT, **scripts.PROVEN}[name]
    assert resumed(script, tmp_path / "run", 8, caplog)[0] == []


def test_what_a_loop_reaches_through_others_is_named_with_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data depend on the count here, so that the unit that is computed again differs."""
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")
    said, report = resumed(reached, tmp_path / "run", 8, caplog)
    for text in (
        "counter starts over",
        "stoppers[0] (EarlyStopping) starts over",
        "data (Counting) starts over at each start: training changes served",
        "optimizer.remember(counter=0)",
        "optimizer.track(stoppers_0=stoppers[0])",
        "optimizer.track(data=data)",
    ):
        assert any(text in one for one in said), (text, said)
    assert report.exact is False


@pytest.mark.parametrize("keeps", ["data", "saver"])
def test_the_line_for_a_dataset_makes_its_count_come_back(keeps: str, tmp_path: Path) -> None:
    prove_exact(partial(counted, keeps=keeps), tmp_path / "run", (8,))


def test_a_run_that_begins_names_them_once_and_so_does_each_start_of_the_finished_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        caplog.clear()
        attempt = Attempt(tmp_path / "run")
        plain_variables(attempt)
        logged = [record.getMessage() for record in caplog.records if "over at each start" in record.getMessage()]
        said = [text.partition(": ")[2] for text in logged]
        said += [note for note in attempt.reports[0].notes if "over at each start" in note]
        assert "best" in " ".join(said)
        assert len(said) == len(set(said))
