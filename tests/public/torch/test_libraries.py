"""What scripts bring along: Ignite's Engine, loaders of other libraries, a scaler that is switched off, files of their own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ignite.engine import Engine, Events
from ignite.metrics import Average
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Attempt, in_child, prove_exact
from tests.torch.nets import seed
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.trainers.ignite import run_engine

pytestmark = pytest.mark.crash

EPOCHS, BATCHES = 4, 6
Run = Callable[[Engine, Any, DataLoader[Any]], object]


def plainly(engine: Engine, optimizer: Any, loader: DataLoader[Any]) -> None:
    engine.run(loader, max_epochs=EPOCHS)


def resumable(engine: Engine, optimizer: Any, loader: DataLoader[Any]) -> None:
    if isinstance(optimizer, LoggedOptimizer):
        run_engine(engine, optimizer, loader, max_epochs=EPOCHS)
    else:
        plainly(engine, optimizer, loader)


def engaged(attempt: Attempt, *, run: Run) -> None:
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
    last = prove_exact(partial(engaged, run=resumable), tmp_path / "run", (6, 13, 11))
    assert last.reports[0].step > 0
    again = prove_exact(partial(engaged, run=resumable), tmp_path / "all", (EPOCHS * (2 * BATCHES + 1) + 1,))
    assert again.final_report().recheck == "equal"
    assert again.reports[0].step == EPOCHS * BATCHES - 1  # the last batch is computed again


def test_an_engine_that_counts_by_itself_is_never_called_exact(tmp_path: Path) -> None:
    """It iterates over the loader in a loop of its own, which starts over."""
    script = partial(engaged, run=plainly)
    assert in_child(lambda: script(Attempt(tmp_path / "run", 26))) < 0
    last = Attempt(tmp_path / "run")
    script(last)
    report = last.final_report()
    assert report.exact is None
    assert any("run_engine" in note for note in report.notes), report.notes


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


class PrefetchLoader:
    """As timm's: prepares the batches of a torch loader."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for (x,) in self.loader:
            yield x * 2

    def __len__(self) -> int:
        return len(self.loader)


class OtherLoader:
    """As fastai's: has a dataset, and is no torch loader."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)


def torch_loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(24, 2)), batch_size=4, shuffle=True)


USES: dict[str, Callable[[LoggedOptimizer, Any], object]] = {
    "track": lambda optimizer, loader: optimizer.track(loader=loader),
    "batches": lambda optimizer, loader: next(iter(optimizer.batches(loader, until=2))),
    "epochs": lambda optimizer, loader: next(iter(optimizer.epochs(2, loader))),
}


@pytest.mark.parametrize("use", USES)
def test_other_loaders_are_refused_with_the_way_that_works(use: str, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model) as optimizer:
        with pytest.raises(UsageError, match=r"got .*PrefetchLoader.*batches\(loader.loader, until=N"):
            USES[use](optimizer, PrefetchLoader(torch_loader()))
        with pytest.raises(UsageError, match=r"got .*OtherLoader.*of its dataset"):
            USES[use](optimizer, OtherLoader([1, 2]))
        assert optimizer.recover().step == 0


def run_once(run: Path, *, enabled: bool, steps: int) -> LoggedOptimizer:
    seed()
    model = torch.nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=8.0)
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), run, model, segment_bytes=1 << 20)
    optimizer.track(scaler=scaler).recover()
    for _ in optimizer.steps(steps):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return optimizer


@pytest.mark.parametrize("was_enabled", [False, True])
def test_a_scaler_that_was_switched_on_or_off_is_named(was_enabled: bool, tmp_path: Path) -> None:
    run_once(tmp_path / "run", enabled=was_enabled, steps=3).close()
    optimizer = run_once(tmp_path / "run", enabled=not was_enabled, steps=6)
    report = optimizer.report
    optimizer.close()
    assert optimizer.watermarks["step"] == 6
    assert report.exact is False
    assert any("GradScaler" in note and "enabled" in note for note in report.notes), report.notes


def adjusted(attempt: Attempt) -> None:
    """Sets the learning rate of each epoch before its loop, over a loader that is not tracked."""
    seed()
    model, loader = nn.Linear(2, 1), torch_loader()
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    attempt.start(optimizer)
    for epoch in range(4):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.5**epoch
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            attempt.tick()
            optimizer.step()
    optimizer.close()


def test_another_learning_rate_of_the_first_resumed_step_is_named(tmp_path: Path) -> None:
    """The loop begins with its first epoch again, and nothing else says that the step is another one."""
    assert in_child(lambda: adjusted(Attempt(tmp_path / "run", 10))) < 0
    last = Attempt(tmp_path / "run")
    adjusted(last)
    report = last.final_report()
    assert report.exact is not True
    assert any("lr of parameter group 0 of optimizer 'main' was changed" in note for note in report.notes), report.notes


def saved(thing: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    assert b"tranlogs" not in file.getvalue()
    file.seek(0)
    return torch.load(file, **options)


def test_what_a_script_saves_holds_nothing_of_the_run_and_the_number_of_an_epoch_is_an_int(tmp_path: Path) -> None:
    model, loader = nn.Linear(2, 1), torch_loader()
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model)
    optimizer.track(loader=loader).recover()
    numbers = []
    for epoch in optimizer.epochs(2, loader):
        for (x,) in epoch:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        loaded = saved({"epoch": epoch, "whole": model, "model": model.state_dict()}, weights_only=False)
        assert torch.equal(loaded["whole"].weight, model.weight)
        assert not loaded["whole"]._forward_pre_hooks
        loaded = saved({"epoch": epoch, "model": model.state_dict()}, weights_only=True)
        for number in (loaded["epoch"], copy.copy(epoch), copy.deepcopy(epoch), pickle.loads(pickle.dumps(epoch, protocol=0))):
            assert type(number) is int
            assert number == epoch
        numbers.append(loaded["epoch"])
    assert numbers == [0, 1]
    optimizer.close()
