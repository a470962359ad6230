"""Code around epochs: a learning rate divided at each bad epoch, a file for each, a `start_epoch` of its own."""

from __future__ import annotations

import logging
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Attempt, differences, in_child, prove_exact
from tests.torch.nets import seed
from tranlogs.training import PENDING
from tranlogs_torch import RecoveryReport
from tranlogs_torch.state.caveats import has_steps

EPOCHS, BATCHES = 5, 6


class Watched(Attempt):
    """Keeps the logged optimizer, for its report at the end."""

    logged: Any = None

    def wrap(self, optimizer: torch.optim.Optimizer, model: Any = None, **options: Any) -> Any:
        self.logged = super().wrap(optimizer, model, **options)
        return self.logged


def built(attempt: Attempt) -> tuple[torch.nn.Module, DataLoader[Any], Any]:
    seed()
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
    loader = DataLoader(TensorDataset(torch.randn(BATCHES * 4, 2)), batch_size=4, shuffle=True)
    return model, loader, attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), model)


def train(attempt: Attempt, model: torch.nn.Module, loader: Any, optimizer: Any) -> None:
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        attempt.tick()
        optimizer.step()
        attempt.tick()


def language_model(attempt: Attempt) -> None:
    """As the word language model: validate after each epoch, divide the learning rate where the loss has not improved."""
    model, loader, optimizer = built(attempt)
    attempt.start(optimizer, loader=loader)
    best = 0.0
    for epoch in optimizer.epochs(EPOCHS, loader):
        train(attempt, model, epoch, optimizer)
        with torch.no_grad():
            loss = float(model(torch.ones(1, 2)).square())
        attempt.tick()
        if loss < best:
            best = loss
        else:
            for group in optimizer.param_groups:
                group["lr"] /= 4
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def after_a_death(script: Any, run: Path, tick: int) -> RecoveryReport:
    assert in_child(lambda: script(Attempt(run, tick))) < 0
    last = Watched(run)
    script(last)
    return last.logged.report  # type: ignore[no-any-return]


@pytest.mark.parametrize("tick", [9, 13, 14, 15, 31, 42])
def test_a_learning_rate_that_is_divided_behind_an_epoch(tick: int, tmp_path: Path) -> None:
    """It is divided once an epoch."""
    prove_exact(language_model, tmp_path / "run", (tick,))


def adjusted(attempt: Attempt) -> None:
    """Sets the learning rate of each epoch before its loop, over a loader that is not tracked."""
    model, loader, optimizer = built(attempt)
    attempt.start(optimizer)
    for epoch in range(EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.5**epoch
        train(attempt, model, loader, optimizer)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.parametrize("tick", [16, 31])
def test_another_learning_rate_of_the_first_resumed_step_is_named(tick: int, tmp_path: Path) -> None:
    """The loop begins with its first epoch again, and nothing else says that the step is another one."""
    report = after_a_death(adjusted, tmp_path / "run", tick)
    assert report.exact is not True
    assert any("lr of parameter group 0 of optimizer 'main' was changed" in note for note in report.notes), report.notes


def imagenet(attempt: Attempt, *, folder: Path, loads_state: bool = False, takes_epochs: bool = False) -> None:
    """Resumes from its own file at the beginning of an epoch, as well as by `recover()`."""
    model, loader, optimizer = built(attempt)
    own, start_epoch = folder / "checkpoint.pt", 0
    if own.exists():
        checkpoint = torch.load(own)
        start_epoch = checkpoint["epoch"]
        if loads_state:
            optimizer.load_state_dict(checkpoint["optimizer"])
    attempt.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(EPOCHS, loader) if takes_epochs else range(start_epoch, EPOCHS):
        train(attempt, model, epoch if takes_epochs else loader, optimizer)
        torch.save({"epoch": int(epoch) + 1, "optimizer": optimizer.state_dict()}, own)
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.parametrize("tick", [16, 20, 29])
def test_a_script_that_loads_its_own_checkpoint_is_told(tick: int, tmp_path: Path) -> None:
    """It may train all epochs but one: that no loop was left out at its end does not show it."""
    report = after_a_death(partial(imagenet, folder=tmp_path, loads_state=True), tmp_path / "run", tick)
    assert report.exact is not True
    assert any("start_epoch" in note and "optimizer.epochs(" in note for note in report.notes), report.notes


@pytest.mark.parametrize("tick", [13, 31, 39, 40])
def test_a_script_that_loads_its_own_file_and_takes_logged_epochs_is_exact(tick: int, tmp_path: Path) -> None:
    """What it has loaded is replaced, the loop leaves finished epochs out, and nobody reads of a changed learning rate."""
    right = Attempt()
    (tmp_path / "other").mkdir()
    imagenet(right, folder=tmp_path / "other", takes_epochs=True)
    script = partial(imagenet, folder=tmp_path, loads_state=True, takes_epochs=True)
    assert in_child(lambda: script(Attempt(tmp_path / "run", tick))) < 0
    last = Watched(tmp_path / "run")
    script(last)
    assert last.outcome() == right.outcome()
    assert last.logged.report.exact is True, last.logged.report.notes
    assert PENDING in last.reports[0].notes, "the line of the resume says so, too"
    assert not [note for note in last.logged.report.notes if not note.startswith("checkpoint starts over")]


def test_only_state_of_steps_counts_as_steps() -> None:
    """Of optimizers that make state at the start, or keep something else there."""
    parameter = torch.nn.Parameter(torch.ones(3))
    assert not has_steps(torch.optim.Adagrad([parameter]))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    assert not has_steps(optimizer)
    for state in (
        torch.ones(3),
        {"step": [1, 2]},
        {"step": torch.ones(3)},
        {"exp_avg": torch.ones(3)},
        {"step": torch.zeros(())},
    ):
        optimizer.state[parameter] = state
        assert not has_steps(optimizer)
    optimizer.state.clear()
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert has_steps(optimizer)


def writes_files(attempt: Attempt, *, folder: Path) -> None:
    """As the imagenet example: a file for each epoch, and the best of them."""
    model, loader, optimizer = built(attempt)
    attempt.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(EPOCHS, loader):
        for (x,) in epoch:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            attempt.tick()
            optimizer.step()
        folder.mkdir(exist_ok=True)
        torch.save(model.state_dict(), folder / f"{int(epoch)}.pt")
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def test_files_of_finished_epochs_are_not_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    right = Watched()
    writes_files(right, folder=tmp_path / "right")
    killed, folder = Watched(tmp_path / "run", die_at=2 * BATCHES + 5), tmp_path / "files"
    assert in_child(lambda: writes_files(killed, folder=folder)) == -signal.SIGKILL
    resumed = Watched(tmp_path / "run")
    with caplog.at_level(logging.WARNING):
        writes_files(resumed, folder=folder)
    assert differences(resumed.outcome(), right.outcome()) == []
    written = [
        path.name for path in sorted(folder.iterdir()) if path.read_bytes() != (tmp_path / "right" / path.name).read_bytes()
    ]
    assert written == []
    assert not resumed.logged.report.notes
    assert caplog.text == ""
    assert resumed.logged.report.exact is True
