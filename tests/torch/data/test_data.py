"""The data go on at the exact next batch: order, random numbers and epochs as without the crash, nothing loaded twice."""

from __future__ import annotations

import copy
import itertools
import logging
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from tests.torch.lab import Attempt, differences, flatten, in_child, prove_exact, with_plain_loops
from tests.torch.nets import seed
from tests.torch.scripts import numbered
from tests.torch.sources import BATCHES, SOURCES, Make, Numbers, Rotating, sampled
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer, RecoveryReport
from tranlogs_torch.data.position.loader_position import LoaderPosition
from tranlogs_torch.data.rng import get_rng


def training(attempt: Attempt, *, make: Make, per_epoch: bool = False, **options: Any) -> None:
    """The body draws from every generator and validates with a shuffled loader every fifth batch."""
    seed()
    model = torch.nn.Linear(2, 1)
    loader = make(**options)
    validation = DataLoader(TensorDataset(torch.randn(9, 2)), batch_size=4, shuffle=True)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
    attempt.start(optimizer, loader=loader)
    taken = optimizer.report.batch if attempt.run is not None else 0

    def body(batch: torch.Tensor) -> None:
        nonlocal taken
        attempt.saw(taken, batch)
        taken += 1
        noise = torch.randn(()) + float(np.random.rand()) + random.random()
        ((model(batch.reshape(-1, 2)) + noise) ** 2).mean().backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()
        if taken % 5 == 0:
            with torch.no_grad():
                [model(x) for (x,) in validation]

    if per_epoch:
        for epoch in optimizer.epochs(3, loader):
            for batch in epoch:
                body(batch)
            attempt.tick()
            torch.rand(1)
    else:
        for batch in optimizer.batches(loader, BATCHES):
            body(batch)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", SOURCES)
def test_next_batch_is_the_exact_one(name: str, tmp_path: Path) -> None:
    """Dies in the first epoch, at an epoch's end, and in a later epoch."""
    # Lazy draws mix with those of the loop: the skipped ones cannot be drawn again, which is told. What follows is right.
    is_exact = name != "lazy draws"
    prove_exact(partial(training, make=SOURCES[name]), tmp_path / "run", (6, 8, 10), is_exact=is_exact, checkpoint_every=1000)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["shuffled", "counter with state", "stream", "one by one"])
def test_epochs_go_on_where_they_were(name: str, tmp_path: Path) -> None:
    """Dies in the middle of an epoch, in the epoch's own code, and at the next epoch's first batch."""
    per_epoch = 46 if name == "one by one" else 12
    die_at = (5, per_epoch - 4 + 1, 1, 2)
    prove_exact(partial(training, make=SOURCES[name], per_epoch=True), tmp_path / "run", die_at, checkpoint_every=1000)


def test_skipped_samples_are_never_loaded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = partial(training, make=SOURCES["shuffled"])
    in_child(lambda: script(Attempt(run, 18)))  # in the second epoch
    seed()
    model = torch.nn.Linear(2, 1)
    data = Numbers()
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-5), run, model, durability="process") as optimizer:
        report = optimizer.recover()
        assert (report.batch, report.epoch) == (17, 1)

        def take_one() -> torch.Tensor:
            def training() -> torch.Tensor:  # the loop of the run is in a function of this name
                batches = optimizer.batches(DataLoader(data, batch_size=4, shuffle=True))
                first = next(batches)
                batches.close()
                return first

            return training()

        first = take_one()
    assert data.loaded == first[:, 0].int().tolist()


def _undone(sampler: Callable[[], Sampler[Any]]) -> Make:
    return lambda **options: DataLoader(Numbers(), batch_size=4, sampler=sampler(), **options)


class Shuffling(IterableDataset[torch.Tensor]):
    """A shuffle buffer on the global generator, from which the body draws, too."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        left = list(range(46))
        while left:
            yield torch.tensor([float(left.pop(random.randrange(len(left)))), 1.0])


class Lazily(DataLoader[Any]):
    """A class of the user's: its __iter__ is a generator, which asks for the sampler when the first batch is wanted."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            yield 2 * batch


class Dependent(Sampler[int]):
    """Each draw depends on the one before and on the global generator."""

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[int]:
        at = 0
        for _ in range(46):
            at = (at + random.randrange(7)) % 46
            yield at


@pytest.mark.parametrize(
    ("make", "word", "at_recovery"),
    [
        (_undone(Rotating), "Rotating", None),  # that it counts on itself is seen at once
        (_undone(Dependent), "Dependent", True),  # what was redone is exact; the data come later
        (lambda **o: DataLoader(Shuffling(), 4, **o), "Shuffling", True),
    ],
)
def test_source_that_does_not_repeat_itself_is_reported(
    make: Make, word: str, at_recovery: bool | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    in_child(lambda: training(Attempt(run, 17), make=make))
    last = Attempt(run)
    with caplog.at_level(logging.WARNING):
        training(last, make=make)
    assert last.reports[0].exact is at_recovery
    report = last.kept["optimizer"].report
    assert report.exact is False
    assert "NOT exact" in str(report)
    assert any(word in note for note in report.notes)
    assert word in caplog.text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keeps", ["", "tracked", "remembered", "in a state"])
def test_generator_of_the_dataset_is_named_or_kept(keeps: str, tmp_path: Path) -> None:
    class Noisy(Numbers):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(2)

        def __getitem__(self, index: int) -> torch.Tensor:
            return super().__getitem__(index) + float(self.rng.random())

        def state_dict(self) -> dict[str, Any]:
            return {"parts": [self.rng.bit_generator.state], "loaded": self.loaded}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.rng.bit_generator.state, self.loaded = state["parts"][0], state["loaded"]

    def script(attempt: Attempt) -> None:
        seed()
        data, model = Noisy(), torch.nn.Linear(2, 1)
        loader = DataLoader(Subset(data, range(40)), 4, shuffle=True)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
        if keeps == "remembered":
            optimizer.remember(parts={"rng": data.rng})
        tracked = {"tracked": {"rng": data.rng}, "in a state": {"data": data}}.get(keeps, {})
        attempt.start(optimizer, loader=loader, **tracked)
        for batch in optimizer.batches(loader, 24):
            model(batch).sum().backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    if keeps:
        prove_exact(script, tmp_path / "run", (5, 9))
        shutil.rmtree(tmp_path / "run")
    in_child(lambda: script(Attempt(tmp_path / "run", 5)))
    last = Attempt(tmp_path / "run")
    script(last)
    report = last.final_report()
    assert report.exact is (True if keeps else None), report
    named = [note for note in report.notes if "loader.dataset.dataset.rng" in note]
    assert len(named) == (0 if keeps else 1)
    assert keeps or "Give optimizer.track(rng=loader.dataset.dataset.rng)" in named[0]


def test_loader_class_of_ones_own_is_read_again(tmp_path: Path) -> None:
    script = partial(training, make=lambda **o: Lazily(Numbers(), 4, shuffle=True, **o))
    prove_exact(script, tmp_path / "run", (6, 8, 10))


def test_counter_restored_by_hand_is_enough(tmp_path: Path) -> None:
    """`epoch`, or set_epoch, is state that samplers often have."""

    class ByEpoch(Rotating):
        epoch = 0

        def __iter__(self) -> Iterator[int]:
            self.epoch += 1
            return iter(torch.randperm(46, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    prove_exact(partial(training, make=sampled(ByEpoch)), tmp_path / "run", (17,))


def test_epoch_says_how_long_it_is_and_where_it_goes_on(tmp_path: Path) -> None:
    """Accumulation by the batch's number in the epoch, with what is left over at its end."""

    def script(attempt: Attempt) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        loader = DataLoader(TensorDataset(torch.randn(14, 3)), 2, shuffle=True)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
        attempt.start(optimizer, loader=loader)
        for epoch in optimizer.epochs(3, loader):
            begin = epoch.batch if attempt.run is not None else 0
            assert attempt.run is None or len(epoch) == 7
            for i, (x,) in enumerate(epoch, start=begin):
                model(x).square().mean().backward()
                attempt.tick()
                if i % 2 == 1 or i == len(loader) - 1:
                    optimizer.step()
                    optimizer.zero_grad()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (5, 4, 6))


def test_another_batch_size_is_told_once_and_not_blamed_on_the_sampler(tmp_path: Path) -> None:
    def script(size: int, until: int) -> RecoveryReport:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        loader = DataLoader(TensorDataset(torch.randn(64, 3)), size, shuffle=True)
        optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters()), tmp_path / "run", model, durability="process")
        optimizer.track(loader=loader).recover()
        for (x,) in optimizer.batches(loader, until=until):
            model(x).sum().backward()
            optimizer.step()
        report = optimizer.report
        optimizer.close()
        return report

    script(4, 3)
    report = script(2, 5)
    assert report.exact is False
    assert [note for note in report.notes if "batch" in note] == [
        "the loader's batch_size was 4 and is now 2, so different batches follow"
    ]


def test_distributed_sampler_takes_the_epoch_as_its_number(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        seed()
        model = torch.nn.Linear(2, 1)
        sampler = DistributedSampler(range(46), num_replicas=1, rank=0)
        loader = DataLoader(Numbers(), 4, sampler=sampler)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
        attempt.start(optimizer, loader=loader)
        taken = optimizer.report.batch if attempt.run is not None else 0
        for epoch in optimizer.epochs(3, loader):
            sampler.set_epoch(epoch)
            for batch in epoch:
                attempt.saw(taken, batch)
                taken += 1
                model(batch).sum().backward()
                attempt.tick()
                optimizer.step()
                optimizer.zero_grad()
        attempt.keep(model=model)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (15, 3))


def test_two_loaders_side_by_side_stay_in_step(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        seed()
        model = torch.nn.Linear(2, 1)
        labelled, other = SOURCES["shuffled"](), SOURCES["replacement"]()
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
        attempt.start(optimizer, labelled=labelled, other=other)
        taken = optimizer.report.batch if attempt.run is not None else 0
        for x, y in zip(optimizer.batches(labelled, 20), itertools.chain.from_iterable(itertools.repeat(other)), strict=False):
            attempt.saw(taken, (x, y))
            taken += 1
            torch.rand(2)
            (model(x).sum() + model(y).square().sum()).backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
            attempt.tick()
        attempt.keep(model=model)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (9, 12))


@pytest.mark.parametrize("workers", [0, 2])
def test_body_may_iterate_over_the_training_data(workers: int, tmp_path: Path) -> None:
    """The accuracy on the training set, in the middle of an epoch: that is another iteration, and draws like one."""

    def script(attempt: Attempt) -> None:
        seed()
        model = torch.nn.Linear(2, 1)
        loader = SOURCES["shuffled"](num_workers=workers)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
        attempt.start(optimizer, loader=loader)
        for number, x in numbered(optimizer, optimizer.batches(loader, 17)):
            attempt.saw(number, x)
            model(x).sum().backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
            if number % 4 == 2:
                attempt.keep(seen=[x.sum().item() for x in loader])
        attempt.keep(model=model)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (6, 3), is_exact=None if workers else True)


def test_copied_loader_has_the_plain_sampler() -> None:
    loader = SOURCES["batch sampler"]()
    LoaderPosition(loader, lambda _: None, lambda _: None, lambda *_: None)
    for twin in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(twin.batch_sampler) is BatchSampler
        assert len(twin) == len(loader) == 11
        assert [len(x) for x in twin] == [4] * 11


def test_two_loops_one_after_the_other(tmp_path: Path) -> None:
    """A loop without a loader, one with, another with, and code that draws before each."""

    def script(attempt: Attempt) -> None:
        seed()
        model = torch.nn.Linear(2, 1)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model)
        attempt.start(optimizer)

        def body(x: torch.Tensor) -> None:
            (model(x) * torch.randn(())).sum().backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()

        torch.rand(3)
        for number in optimizer.steps(4):
            body(torch.full((2, 2), float(number)))
        for make in (SOURCES["shuffled"], SOURCES["stream"]):
            for x in optimizer.batches(make(), 15):
                body(x)
        attempt.keep(model=model)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (2, 3, 9, 11))


@pytest.mark.parametrize("make", [lambda: DataLoader([], 4), lambda: DataLoader(TensorDataset(torch.empty(0, 2)), 4)])
def test_empty_loader_ends_at_once(make: Callable[[], DataLoader[Any]], tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model) as optimizer:
        optimizer.recover()
        assert list(optimizer.batches(make(), 5)) == []
        assert [list(epoch) for epoch in optimizer.epochs(2, make())] == [[], []]


def test_loop_behind_one_left_by_break_begins_anew(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    loader = SOURCES["in order, last dropped"]()
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model) as optimizer:
        optimizer.recover()
        seen: list[int] = []
        for _ in range(4):
            for number, x in enumerate(optimizer.batches(loader, 11)):
                seen += x[:, 0].int().tolist()
                if number == 2:
                    break
    assert seen == 4 * list(range(12))


def test_epoch_left_by_break_is_over(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model) as optimizer:
        optimizer.recover()
        epochs = optimizer.epochs(2, SOURCES["shuffled"]())
        next(iter(next(epochs)))
        assert (next(epochs), optimizer.training_run.auxiliary.taken()["loader"]) == (1, 1)


def test_loader_that_raises_goes_on_at_the_same_batch(tmp_path: Path) -> None:
    class Flaky(Numbers):
        is_down = True

        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 9 and self.is_down:
                raise OSError("the file server is away")
            return super().__getitem__(index)

    data = Flaky()
    loader = DataLoader(data, batch_size=4, sampler=SequentialSampler(data))
    position = LoaderPosition(loader, lambda _: None, lambda _: None, lambda *_: None)
    batches = position.batches(11)
    seen = [next(batches)[0, 0].item() for _ in range(2)]
    with pytest.raises(OSError, match="file server"):
        next(batches)
    data.is_down = False
    assert seen + [x[0, 0].item() for x in position.batches(11)] == [4.0 * i for i in range(11)]


def test_something_that_is_no_loader_is_refused_in_words(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model) as optimizer:
        with pytest.raises(UsageError, match="DataLoader, got a list"):
            next(optimizer.batches([1, 2, 3]))
        with pytest.raises(UsageError, match="needs a loader"):
            next(optimizer.epochs(3))


@pytest.mark.parametrize("name", SOURCES)
def test_proxy_changes_neither_order_nor_random_numbers(name: str) -> None:
    outcomes = []
    for is_proxied in (False, True):
        seed()
        loader = SOURCES[name]()
        plain = with_plain_loops(torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
        position = LoaderPosition(loader, lambda _: None, lambda _: None, lambda *_: None) if is_proxied else None
        batches = position.batches(20) if position is not None else plain.batches(loader, 20)
        outcomes.append(flatten([list(batches), get_rng()]))
    assert differences(*outcomes) == []


class Batch:
    """A batch of a kind that nobody knows."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Lazy(IterableDataset[torch.Tensor]):
    """Draws from a generator of its own, which begins anew with the process."""

    def __init__(self) -> None:
        self.own = random.Random(3)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(12):
            yield torch.full((2,), self.own.random())


def test_batches_of_any_kind_are_compared(tmp_path: Path) -> None:
    def collate(samples: list[torch.Tensor]) -> Batch:
        return Batch(torch.stack(samples))

    def script(until: int) -> RecoveryReport:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        loader: DataLoader[Any] = DataLoader(Lazy(), 3, collate_fn=collate)
        with LoggedOptimizer(torch.optim.SGD(model.parameters()), tmp_path / "run", model, durability="process") as optimizer:
            optimizer.track(loader=loader).recover()
            for batch in optimizer.batches(loader, until=until):
                model(batch.x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return optimizer.report

    script(6)  # in the middle of the second epoch
    report = script(7)
    assert report.exact is False
    assert any("Lazy did not yield the same batches again" in note for note in report.notes)
