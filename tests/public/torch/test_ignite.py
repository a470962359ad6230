"""Ignite's Engine counts iterations by itself and begins an exhausted loader again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ignite.engine import Engine, Events
from ignite.metrics import Average
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Attempt, in_child, prove_exact
from tests.torch.nets import seed
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.state.caveats import IMPLICIT
from tranlogs_torch.trainers.ignite import run_engine

EPOCHS, BATCHES = 4, 6
Run = Callable[[Engine, Any, DataLoader[Any]], object]


def plainly(engine: Engine, optimizer: Any, loader: DataLoader[Any]) -> None:
    engine.run(loader, max_epochs=EPOCHS)


def resumable(engine: Engine, optimizer: Any, loader: DataLoader[Any]) -> None:
    if isinstance(optimizer, LoggedOptimizer):
        run_engine(engine, optimizer, loader, max_epochs=EPOCHS)
    else:
        plainly(engine, optimizer, loader)


def training(attempt: Attempt, *, run: Run) -> None:
    seed()
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    loader = DataLoader(TensorDataset(torch.randn(BATCHES * 4, 2)), batch_size=4, shuffle=True)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)

    def update(engine: Engine, batch: Any) -> float:
        attempt.tick()
        optimizer.zero_grad()
        loss = model(batch[0]).square().mean()
        loss.backward()
        optimizer.step()
        attempt.tick()
        return float(loss.detach())

    engine = Engine(update)
    average = Average(device="cpu")
    average.attach(engine, "loss")
    places: list[tuple[int, int]] = []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: places.append((e.state.epoch, e.state.iteration)))

    @engine.on(Events.EPOCH_COMPLETED)
    def at_epoch_end(engine: Engine) -> None:
        scheduler.step()
        attempt.tick()

    attempt.start(optimizer, loader=loader, scheduler=scheduler)
    run(engine, optimizer, loader)
    first = places[0][1] - 1 if places else EPOCHS * BATCHES
    assert places == [(1 + n // BATCHES, n + 1) for n in range(first, EPOCHS * BATCHES)]
    attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler, at=(engine.state.epoch, engine.state.iteration))
    optimizer.close()


def test_an_engine_goes_on_at_the_exact_batch(tmp_path: Path) -> None:
    """Dies in the middle of an epoch, in the handler behind it, right behind that, and when all is done."""
    last = prove_exact(partial(training, run=resumable), tmp_path / "run", (6, 13, 1, 22, 11))
    assert last.reports[0].step > 0
    again = prove_exact(partial(training, run=resumable), tmp_path / "all", (EPOCHS * (2 * BATCHES + 1) + 1,))
    assert again.final_report().recheck == "equal"
    assert again.reports[0].step == EPOCHS * BATCHES - 1  # the last batch is computed again


@pytest.mark.parametrize("tick", [5, 24, 26, 37])
def test_an_engine_that_counts_by_itself_is_never_called_exact(tick: int, tmp_path: Path) -> None:
    """It iterates over the loader in a loop of its own, which starts over."""
    script = partial(training, run=plainly)
    assert in_child(lambda: script(Attempt(tmp_path / "run", tick))) < 0
    last = Attempt(tmp_path / "run")
    logged: list[Any] = []
    wrap = last.wrap

    def kept(*things: Any, **options: Any) -> Any:
        logged.append(wrap(*things, **options))
        return logged[-1]

    last.wrap = kept  # type: ignore[method-assign]
    script(last)
    report = logged[0].report
    assert report.exact is None
    assert any("run_engine" in note for note in report.notes), report.notes


@pytest.mark.parametrize("run", [plainly, resumable])
def test_an_engine_that_nobody_kills_warns_of_nothing_else(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """But for the script's own list, which does start over."""
    training(Attempt(tmp_path / "run"), run=run)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (other,) = [text for text in warned if IMPLICIT not in text]
    assert ": places starts over at each start. " in other
    assert len(warned) == 1 + (run is plainly)


def test_what_cannot_be_right_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    loader = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=4)
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), tmp_path / "run", model) as optimizer:
        with pytest.raises(UsageError, match=r"call optimizer\.recover"):
            run_engine(Engine(lambda engine, batch: None), optimizer, loader, max_epochs=1)
        optimizer.recover()
        engine = Engine(lambda engine, batch: None)
        engine.run([1, 2])
        with pytest.raises(UsageError, match="has already run 2 iterations"):
            run_engine(engine, optimizer, loader, max_epochs=1)
