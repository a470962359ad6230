"""Iterations over tracked loaders beside a loop of `LoggedOptimizer` come back with it; plain loops start over."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, DataLoader

from tests.torch.lab import Attempt, differences, flatten, in_child, prove_exact
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tests.torch.scripts import validate
from tests.torch.sources import SOURCES, Numbers
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.state.caveats import IMPLICIT


def step(attempt: Attempt, model: torch.nn.Module, optimizer: Any, *inputs: torch.Tensor) -> None:
    noise = torch.randn(()) + float(np.random.rand()) + random.random()
    sum(((model(x.reshape(-1, 2)) + noise) ** 2).mean() for x in inputs).backward()
    attempt.tick()
    optimizer.step()
    optimizer.zero_grad()
    attempt.tick()


def logged(attempt: Attempt, **loaders: DataLoader[Any]) -> tuple[torch.nn.Module, Any]:
    model = torch.nn.Linear(2, 1)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
    attempt.start(optimizer, **loaders)
    return model, optimizer


def plain(attempt: Attempt, *, names: tuple[str, ...] = ()) -> None:
    seed()
    loader = SOURCES["shuffled"]()
    model = torch.nn.Linear(2, 1)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
    if names:
        optimizer.remember(**dict.fromkeys(names, 0))
    attempt.start(optimizer, loader=loader)
    attempt.keep(begun=copy.deepcopy(model.state_dict()))
    for _ in range(2):
        for batch in loader:
            step(attempt, model, optimizer, batch)
            attempt.keep(model=copy.deepcopy(model.state_dict()))
    attempt.keep(steps=optimizer.watermarks["step"] if attempt.run is not None else attempt.ticks // 2)
    optimizer.close()


@pytest.mark.parametrize("names", [(), ("best",)], ids=["", "remembered"])
@pytest.mark.parametrize("rechecks", ["0", "1"])
def test_a_plain_loop_is_logged_starts_over_and_is_named_with_the_lines_to_write(
    rechecks: str,
    names: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Named before the crash already, at the tenth step. Its steps are neither called exact nor called wrong."""
    monkeypatch.setenv("TRANLOGS_RECHECK", rechecks)
    run = tmp_path / "run"
    assert in_child(lambda: plain(Attempt(run, 29), names=names)) < 0  # after 14 steps, in the second epoch
    last = Attempt(run)
    plain(last, names=names)
    begun, report = last.reports[0], last.final_report()
    assert begun.step == 14
    assert last.kept["steps"] == begun.step + 24, "the loop starts over"
    assert (report.recheck, report.exact) == ("", None), report
    assert [note for note in begun.notes if note == IMPLICIT] == [IMPLICIT], begun.notes
    assert "`for epoch in optimizer.epochs(E):`" in IMPLICIT
    assert "`for batch in epoch:`" in IMPLICIT
    twin: list[Any] = []
    attempt = Attempt()
    attempt.tick = lambda: twin.append(copy.deepcopy(attempt.kept.get("model")))  # type: ignore[method-assign]
    plain(attempt, names=names)
    assert differences(flatten(last.kept["begun"]), flatten(twin[28])) == [], "the weights are those after the 14th step"


def test_a_plain_loop_is_named_in_a_fresh_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain(Attempt(tmp_path / "run"))
    assert caplog.text.count(IMPLICIT) == 1


def test_steps_before_a_loop_are_no_part_of_its_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up that the script takes only in a fresh run."""
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")

    def script(attempt: Attempt) -> None:
        seed()
        loader = SOURCES["shuffled"]()
        model, optimizer = logged(attempt, loader=loader)
        if attempt.run is None or optimizer.report.step == 0:
            for batch in loader:
                step(attempt, model, optimizer, batch)
        for batch in optimizer.batches(loader, until=15):
            step(attempt, model, optimizer, batch)
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    for die_at in (26, 27, 30):  # in the first two units of the loop, which follow 12 steps
        prove_exact(script, tmp_path / str(die_at), (die_at,), is_exact=None if die_at < 28 else True)


def per_epoch(attempt: Attempt, *, epochs: int = 4) -> None:
    """Code per epoch that changes all that is tracked: schedulers, modes, flags, weights; validation with draws."""
    seed()
    model = Mixed()
    loader, validation = tokens(20), tokens(12)  # five batches
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.7)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    attempt.start(optimizer, loader=loader, scheduler=scheduler, plateau=plateau)
    for epoch in optimizer.epochs(epochs, loader):
        model.train()
        for batch in epoch:
            attempt.saw_next(batch)
            loss_of(model, batch).backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
        attempt.tick()
        model.hidden.bias.requires_grad_(epoch % 2 == 0)
        scheduler.step()
        plateau.step(validate(model, validation) + validate(model, loader))
        model.rare.weight.data.clamp_(-0.1, 0.1)
        attempt.tick()
        model.eval()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler, plateau=plateau)
    optimizer.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("die_at", [(3, 6), (7, 8), (6, 8, 5), (13, 5, 9), (20,), (28,)])
def test_code_per_epoch_that_runs_again_leaves_nothing_behind(die_at: tuple[int, ...], tmp_path: Path) -> None:
    prove_exact(per_epoch, tmp_path / "run", die_at)


def test_evaluation_with_gradients_on_and_looks_at_batches_run_again(tmp_path: Path) -> None:
    """Before the loop, held or dropped, and between the epochs, over the loader of the loop."""

    def script(attempt: Attempt) -> None:
        seed()
        loader = SOURCES["shuffled"]()
        before = [len(x) for x in loader]  # before recover()
        model, optimizer = logged(attempt, loader=loader)
        looks = iter(loader)
        assert len(next(looks)) == len(next(iter(loader))) == 4
        for epoch in optimizer.epochs(3, loader):
            for batch in epoch:
                attempt.saw_next(batch)
                step(attempt, model, optimizer, batch)
            total = sum(model(x).sum().item() for x in loader)
            attempt.tick()
            for group in optimizer.param_groups:
                group["lr"] = 1e-5 / (1 + abs(total))
        attempt.keep(model=model, optimizer=optimizer, before=before)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (9, 22, 14, 12))


def test_body_may_iterate_over_the_loader(tmp_path: Path) -> None:
    """Before the first step of the epoch and after it, with gradients on and off."""

    def script(attempt: Attempt) -> None:
        seed()
        loader = SOURCES["shuffled"]()
        model, optimizer = logged(attempt, loader=loader)
        for epoch in optimizer.epochs(3, loader):
            for batch in epoch:
                attempt.saw_next(batch)
                if max(attempt.seen) % 12 in (0, 5):
                    attempt.keep(mean=sum(x.sum().item() for x in loader))
                step(attempt, model, optimizer, batch)
                with torch.no_grad():
                    next(iter(loader))
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (5, 21, 11), is_exact=True)


def side_by_side(attempt: Attempt) -> None:
    seed()
    first, second = SOURCES["shuffled"](), SOURCES["generator of its own"](drop_last=True)
    model, optimizer = logged(attempt, first=first, second=second)
    for epoch in optimizer.epochs(3, first):
        for x, y in zip(epoch, second, strict=False):
            step(attempt, model, optimizer, x, y)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def second_source(attempt: Attempt, *, every: int = 1) -> None:
    """Another loader, begun anew in the body whenever it is empty."""
    seed()
    first, second = SOURCES["shuffled"](), SOURCES["subset sampler"]()
    model, optimizer = logged(attempt, first=first, second=second)
    others = iter(second)
    for epoch in optimizer.epochs(3, first):
        for i, x in epoch.enumerate():
            if i % every == every - 1:
                try:
                    y = next(others)
                except StopIteration:
                    others = iter(second)
                    y = next(others)
                attempt.saw_next((x, y))
                step(attempt, model, optimizer, x, y)
            else:
                attempt.saw_next(x)
                step(attempt, model, optimizer, x)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def cycled(attempt: Attempt) -> None:
    """Another loader that has more batches than the loop takes."""
    seed()
    first, second = SOURCES["shuffled"](), DataLoader(Numbers(), shuffle=True)
    model, optimizer = logged(attempt, first=first, second=second)
    others = itertools.cycle(second)
    for x in optimizer.batches(first, until=30):
        step(attempt, model, optimizer, x, next(others))
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def one_after_the_other(attempt: Attempt) -> None:
    """Two loaders in turns, after another loop, and a `break`."""
    seed()
    first, second = SOURCES["shuffled"](), SOURCES["weighted"]()
    model, optimizer = logged(attempt, first=first, second=second)
    for x in optimizer.batches(first, 5):
        step(attempt, model, optimizer, x)
    for epoch in optimizer.epochs(3, first):
        for x in epoch:
            step(attempt, model, optimizer, x)
        torch.rand(1)
        for x in second:
            step(attempt, model, optimizer, x)
            if x[0, 0] % 4 == 3:
                break
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def validated(attempt: Attempt) -> None:
    """An evaluation with gradients on around each epoch, over another loader; the loader draws from a generator of its own."""
    seed()
    first, second = SOURCES["shuffled"](), SOURCES["generator of its own"]()
    model, optimizer = logged(attempt, first=first, second=second)
    totals: list[float] = []
    for epoch in optimizer.epochs(3, first):
        before = sum(model(x).sum().item() for x in second)
        for x in epoch:
            step(attempt, model, optimizer, x)
        totals = [before, sum(model(x).sum().item() for x in second)]
    attempt.keep(model=model, optimizer=optimizer, totals=totals[1:])
    optimizer.close()


def held_in_a_loop_of_ours(attempt: Attempt) -> None:
    seed()
    loader = SOURCES["shuffled"]()
    model, optimizer = logged(attempt, loader=loader)
    batches = iter(loader)
    for _ in optimizer.steps(30):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        step(attempt, model, optimizer, batch)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


COMPANIONS: dict[str, Callable[[Attempt], None]] = {
    "side by side": side_by_side,
    "second source": second_source,
    "second source now and then": partial(second_source, every=5),
    "cycled": cycled,
    "one after the other": one_after_the_other,
    "validated": validated,
    "held in steps": held_in_a_loop_of_ours,
}


@pytest.mark.parametrize("rechecks", ["0", "1"])
@pytest.mark.parametrize("name", COMPANIONS)
def test_companions_come_back_in_step(name: str, rechecks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", rechecks)
    prove_exact(COMPANIONS[name], tmp_path / "run", (7, 19, 16, 4, 9) if rechecks == "0" else (5, 24, 3))


def accumulating(attempt: Attempt) -> None:
    """Windows of three batches that straddle epochs; two steps in some."""
    seed()
    loader = SOURCES["shuffled"]()
    model, optimizer = logged(attempt, loader=loader)
    number = optimizer.report.batch if attempt.run is not None else 0
    for epoch in optimizer.epochs(4, loader):
        for x in epoch:
            model(x).square().mean().backward()
            attempt.tick()
            number += 1
            if number % 3 == 2:
                optimizer.step()
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def test_accumulation_and_several_steps_a_batch(tmp_path: Path) -> None:
    prove_exact(accumulating, tmp_path / "run", (6, 22, 27, 13))


def test_loader_is_what_it_was(tmp_path: Path) -> None:
    class Own(DataLoader[Any]):
        def twice(self) -> int:
            return 2 * len(self)

    data = list(range(10))
    loader = Own(data, batch_size=2)
    model = torch.nn.Linear(2, 1)
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model) as optimizer:
        optimizer.track(loader=loader)
        assert isinstance(loader, Own)
        assert loader.twice() == 10
        assert len(list(loader)) == 5  # before recover()
        optimizer.recover()
        twin = copy.deepcopy(loader)
        assert type(twin) is Own
        assert type(twin.batch_sampler) is BatchSampler
        assert len(list(twin)) == 5
        assert optimizer.training_run.auxiliary.taken() == {"loader": 0, "": 0}
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.extend(loader))
        thread.start()
        thread.join()
        assert len(seen) == 5
        assert optimizer.training_run.auxiliary.taken() == {"loader": 0, "": 0}
        other = tokens()
        optimizer.track(other=other)
        assert type(pickle.loads(pickle.dumps(other))) is DataLoader
    assert type(loader) is Own
    assert len(list(loader)) == 5


def test_an_iteration_that_gave_batches_before_the_loop_is_named(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        seed()
        loader = SOURCES["shuffled"]()
        model, optimizer = logged(attempt, loader=loader)
        batches = iter(loader)
        ahead = next(batches)
        for _ in optimizer.steps(9):
            step(attempt, model, optimizer, ahead)
            ahead = next(batches)
        optimizer.close()

    run = tmp_path / "run"
    in_child(lambda: script(Attempt(run, 9)))
    last = Attempt(run)
    script(last)
    assert last.reports[0].exact is None
    assert any("gave batches before the loop" in note for note in last.reports[0].notes)


def test_steps_without_a_loop_are_committed_though_an_iterator_is_held(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    loader = SOURCES["shuffled"]()
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-5), tmp_path / "run", model) as optimizer:
        optimizer.track(loader=loader)
        optimizer.recover()
        looks = iter(loader)
        next(looks)
        for _ in range(150):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert optimizer.watermarks["committed"] > 140
