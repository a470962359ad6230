"""A script's own `for epoch: for batch in loader`, with nothing but `track(loader=loader)`: exact, whatever surrounds it."""

from __future__ import annotations

import copy
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

from tests.torch.lab import Attempt, in_child, prove_exact
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tests.torch.scripts import validate
from tests.torch.sources import SOURCES, Make
from tranlogs_torch import LoggedOptimizer


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


def plain(attempt: Attempt, *, make: Make, epochs: int = 3, **options: Any) -> None:
    seed()
    loader = make(**options)
    model, optimizer = logged(attempt, loader=loader)
    for _ in range(epochs):
        for batch in loader:
            attempt.saw_next(batch)
            step(attempt, model, optimizer, batch)
        torch.rand(1)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", [name for name in SOURCES if name not in ("one by one", "unloggable indices")])
def test_plain_loop_goes_on_at_the_exact_next_batch(name: str, tmp_path: Path) -> None:
    """Dies in the first epoch, at the second's first batch, and in the third; twelve batches of two ticks an epoch."""
    prove_exact(partial(plain, make=SOURCES[name]), tmp_path / "run", (5, 20, 27), checkpoint_every=1000)


@pytest.mark.parametrize("die_at", [(9, 1), (29, 1), (15, 5, 1, 1), (23, 1), (24, 1, 2)], ids=str)
def test_killed_in_the_first_batch_after_a_resume(die_at: tuple[int, ...], tmp_path: Path) -> None:
    prove_exact(partial(plain, make=SOURCES["shuffled"]), tmp_path / "run", die_at)


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_plain_loop_with_workers(persistent: bool, tmp_path: Path) -> None:
    script = partial(plain, make=SOURCES["shuffled"], num_workers=2, persistent_workers=persistent)
    prove_exact(script, tmp_path / "run", (7, 26), is_exact=None)


def per_epoch(attempt: Attempt, *, epochs: int = 4) -> None:
    """Code per epoch that changes all that is tracked: schedulers, modes, flags, weights; validation with draws."""
    seed()
    model = Mixed()
    loader, validation = tokens(20), tokens(12)  # five batches
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.7)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    attempt.start(optimizer, loader=loader, scheduler=scheduler, plateau=plateau)
    for epoch in range(epochs):
        model.train()
        for batch in loader:
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
    """Passes without steps: before the loop, held or dropped, and between the epochs, over the same loader."""

    def script(attempt: Attempt) -> None:
        seed()
        loader = SOURCES["shuffled"]()
        before = [len(x) for x in loader]  # before recover()
        model, optimizer = logged(attempt, loader=loader)
        looks = iter(loader)
        assert len(next(looks)) == len(next(iter(loader))) == 4
        for _ in range(3):
            for batch in loader:
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
        for _ in range(3):
            for batch in loader:
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
    for _ in range(3):
        for x, y in zip(first, second, strict=False):
            step(attempt, model, optimizer, x, y)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def second_source(attempt: Attempt) -> None:
    """Another loader, begun anew in the body whenever it is empty."""
    seed()
    first, second = SOURCES["shuffled"](), SOURCES["subset sampler"]()
    model, optimizer = logged(attempt, first=first, second=second)
    others = iter(second)
    for _ in range(3):
        for x in first:
            try:
                y = next(others)
            except StopIteration:
                others = iter(second)
                y = next(others)
            attempt.saw_next((x, y))
            step(attempt, model, optimizer, x, y)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def one_after_the_other(attempt: Attempt) -> None:
    """Two loaders in turns, a loop of ours before them, and a `break`."""
    seed()
    first, second = SOURCES["shuffled"](), SOURCES["weighted"]()
    model, optimizer = logged(attempt, first=first, second=second)
    for x in optimizer.batches(first, 5):
        step(attempt, model, optimizer, x)
    for _ in range(2):
        for x in first:
            step(attempt, model, optimizer, x)
        torch.rand(1)
        for x in second:
            step(attempt, model, optimizer, x)
            if x[0, 0] % 4 == 3:
                break
    attempt.keep(model=model, optimizer=optimizer)
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


@pytest.mark.parametrize("script", [side_by_side, second_source, one_after_the_other, held_in_a_loop_of_ours])
def test_several_loops(script: Callable[[Attempt], None], tmp_path: Path) -> None:
    prove_exact(script, tmp_path / "run", (7, 19, 16, 4, 9))


def accumulating(attempt: Attempt) -> None:
    """Windows of three batches that straddle epochs; two steps in some."""
    seed()
    loader = SOURCES["shuffled"]()
    model, optimizer = logged(attempt, loader=loader)
    number = optimizer.report.batch if attempt.run is not None else 0
    for _ in range(4):
        for x in loader:
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


def test_step_in_code_that_runs_again_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def script(attempt: Attempt) -> None:
        seed()
        loader = SOURCES["shuffled"]()
        model, optimizer = logged(attempt, loader=loader)
        for _ in range(3):
            for batch in loader:
                step(attempt, model, optimizer, batch)
            step(attempt, model, optimizer, torch.ones(2, 2))
        attempt.keep(optimizer=optimizer)
        optimizer.close()

    run = tmp_path / "run"
    in_child(lambda: script(Attempt(run, 30)))
    last = Attempt(run)
    script(last)
    report = last.kept["optimizer"].report
    assert report.exact is False
    assert any("applied twice" in note and "epochs(" in note for note in report.notes)
    assert caplog.text.count("applied twice") == 1, "it is warned of once, not at each step"


def test_loop_that_reads_ahead_is_named(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        seed()
        loader = SOURCES["shuffled"]()
        model, optimizer = logged(attempt, loader=loader)
        batches = iter(loader)
        ahead = next(batches)
        for following in batches:
            step(attempt, model, optimizer, ahead)
            ahead = following
        optimizer.close()

    run = tmp_path / "run"
    in_child(lambda: script(Attempt(run, 9)))
    last = Attempt(run)
    script(last)
    assert last.reports[0].exact is None
    assert any("reads ahead" in note for note in last.reports[0].notes)


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
