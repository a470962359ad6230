"""The data go on at the exact next batch: order, random numbers and epochs as without the crash, nothing loaded twice."""

from __future__ import annotations

import copy
import logging
import pickle
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.support import campaign
from tests.torch.lab import Attempt, in_child, prove_exact
from tests.torch.nets import seed
from tests.torch.sources import BATCHES, SOURCES, STATEFUL, Make, Numbers, Rotating, Shuffling, sampled
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer, RecoveryReport

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.15


def training(
    attempt: Attempt,
    *,
    make: Make,
    per_epoch: int = 0,
    options: dict[str, Any] | None = None,
    after: Callable[[Any, Any], None] = lambda loader, batch: None,
    **of_loader: Any,
) -> None:
    """The body draws from every generator and validates with a shuffled loader every fifth batch."""
    seed()
    model = torch.nn.Linear(2, 1)
    loader = make(**of_loader)
    validation = DataLoader(TensorDataset(torch.randn(9, 2)), batch_size=4, shuffle=True)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model, **(options or {}))
    attempt.start(optimizer, loader=loader)
    taken = optimizer.report.batch if attempt.run is not None else 0

    def body(batch: Any) -> None:
        nonlocal taken
        attempt.saw(taken, batch)
        taken += 1
        noise = torch.randn(()) + float(np.random.rand()) + random.random()
        ((model(batch.reshape(-1, 2)) + noise) ** 2).mean().backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()
        after(loader, batch)
        if taken % 5 == 0:
            with torch.no_grad():
                [model(x) for (x,) in validation]

    if per_epoch:
        for epoch in optimizer.epochs(per_epoch, loader):
            for batch in epoch:
                body(batch)
            attempt.tick()
            torch.rand(1)
    else:
        for batch in optimizer.batches(loader, BATCHES):
            body(batch)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*SOURCES, *STATEFUL])
def test_next_batch_is_the_exact_one(name: str, tmp_path: Path) -> None:
    """Dies in the first epoch, and in the second one."""
    # Lazy draws mix with those of the loop: the skipped ones cannot be drawn again, which is told. What follows is right.
    is_exact = name != "lazy draws"
    script = partial(training, make=(SOURCES | STATEFUL)[name])
    prove_exact(script, tmp_path / "run", (7, 12), is_exact=is_exact, checkpoint_every=1000)


@pytest.mark.parametrize("name", ["shuffled", *map(campaign.in_soak, ["counter with state", "stream", "one by one"])])
def test_epochs_go_on_where_they_were(name: str, tmp_path: Path) -> None:
    """Dies in the middle of an epoch, in the epoch's own code, and at the next epoch's first batch."""
    batches = 46 if name == "one by one" else 12
    die_at = (5, batches - 4 + 2, 2, 3)
    prove_exact(partial(training, make=SOURCES[name], per_epoch=2), tmp_path / "run", die_at, checkpoint_every=1000)


# Loops over data of other forms: each a function that is killed at these ticks.


def of_a_schedule_of_batch_sizes(attempt: Attempt, optimizer: Any, body: Callable[..., None]) -> None:
    loader = SOURCES["shuffled"]()
    attempt.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(3, loader):
        assert isinstance(loader.batch_sampler, BatchSampler)
        loader.batch_sampler.batch_size = 4 + 2 * epoch
        for x in epoch:
            body(x)


def of_an_epoch_that_says_how_long_it_is(attempt: Attempt, optimizer: Any, body: Callable[..., None]) -> None:
    """Accumulation by the batch's number in the epoch, with what is left over at its end."""
    loader = DataLoader(TensorDataset(torch.randn(14, 2)), 2, shuffle=True)
    attempt.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(3, loader):
        begin = epoch.batch if attempt.run is not None else 0
        assert attempt.run is None or len(epoch) == 7
        for i, (x,) in enumerate(epoch, start=begin):
            body(x, steps=i % 2 == 1 or i == len(loader) - 1)


def of_a_distributed_sampler(attempt: Attempt, optimizer: Any, body: Callable[..., None]) -> None:
    """It takes the epoch as its number."""
    sampler = DistributedSampler(range(46), num_replicas=1, rank=0)
    loader = DataLoader(Numbers(), 4, sampler=sampler)
    attempt.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(3, loader):
        sampler.set_epoch(epoch)
        for batch in epoch:
            body(batch)


@pytest.mark.parametrize(
    ("loop", "die_at"),
    [
        (of_a_schedule_of_batch_sizes, (5, 13)),
        (of_an_epoch_that_says_how_long_it_is, (5, 8)),
        (of_a_distributed_sampler, (15, 3)),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_loop_over_data_comes_back(loop: Callable[..., None], die_at: tuple[int, ...], tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        seed()
        model = torch.nn.Linear(2, 1)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9), model)

        def body(x: torch.Tensor, *, steps: bool = True) -> None:
            attempt.saw_next(x)
            (model(x) * torch.randn(())).square().sum().backward()
            attempt.tick()
            if steps:
                optimizer.step()
                optimizer.zero_grad()

        loop(attempt, optimizer, body)
        attempt.keep(model=model)
        optimizer.close()

    prove_exact(script, tmp_path / "run", die_at)


def test_skipped_samples_are_never_loaded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    in_child(lambda: training(Attempt(run, 18, recheck=False), make=SOURCES["shuffled"]))  # in the second epoch
    seed()
    model, data = torch.nn.Linear(2, 1), Numbers()
    inner = torch.optim.SGD(model.parameters(), lr=1e-5)
    with LoggedOptimizer(inner, run, model, durability="process", recheck=False) as optimizer:
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


# Data that do not repeat themselves


class Mining(Sampler[int]):
    """Its order depends on weights that the loop writes."""

    def __init__(self) -> None:
        self.weights = torch.ones(46)

    def __len__(self) -> int:
        return 46

    def __iter__(self) -> Iterator[int]:
        return iter(torch.multinomial(self.weights, 46).tolist())


def write_weights(loader: DataLoader[Any], batch: torch.Tensor) -> None:
    loader.sampler.weights[int(batch[0, 0])] += 1  # type: ignore[attr-defined]


class Lazy(IterableDataset[torch.Tensor]):
    """Draws from a generator of its own, which begins anew with the process."""

    def __init__(self) -> None:
        self.own = random.Random(3)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(46):
            yield torch.full((2,), self.own.random())


class Batch:
    """A batch of a kind that nobody knows."""

    def __init__(self, samples: list[torch.Tensor]) -> None:
        self.x = torch.stack(samples)

    def reshape(self, *shape: int) -> torch.Tensor:
        return self.x.reshape(*shape)


@pytest.mark.parametrize(
    ("make", "after", "word"),
    [
        (sampled(Rotating), None, "Rotating"),
        (lambda **o: DataLoader(Shuffling(), 4, **o), None, "Shuffling"),
        (lambda **o: DataLoader(Lazy(), 4, collate_fn=Batch, **o), None, "Lazy did not yield the same batches again"),
        (sampled(Mining), write_weights, "Mining"),
    ],
    ids=["counts on itself", "shuffle buffer", "own generator", "weights"],
)
def test_source_that_does_not_repeat_itself_is_reported(
    make: Make, after: Callable[[Any, Any], None] | None, word: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = partial(training, make=make, **({} if after is None else {"after": after}))
    in_child(lambda: script(Attempt(tmp_path / "run", 17)))
    last = Attempt(tmp_path / "run")
    with caplog.at_level(logging.WARNING):
        script(last)
    report = last.kept["optimizer"].report
    assert report.exact is False
    assert "NOT exact" in str(report)
    assert any(word in note for note in report.notes), report.notes
    assert word in caplog.text


@pytest.mark.parametrize("keeps", ["", "unused", "tracked", campaign.in_soak("remembered"), "in a state"])
def test_generator_of_the_dataset_is_named_or_kept(keeps: str, tmp_path: Path) -> None:
    """Unless only its constructor draws from it. It is named in each later process."""

    class Noisy(Numbers):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(2)
            self.rng.random()

        def __getitem__(self, index: int) -> torch.Tensor:
            return super().__getitem__(index) + (0.0 if keeps == "unused" else float(self.rng.random()))

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
        for batch in optimizer.batches(loader, 14):
            model(batch).sum().backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    if keeps:
        report = prove_exact(script, tmp_path / "run", (5,)).final_report()
    else:
        for die_at in (5, 2):
            in_child(lambda die_at=die_at: script(Attempt(tmp_path / "run", die_at)))
        last = Attempt(tmp_path / "run")
        script(last)
        report = last.final_report()
        assert report.exact is not True, report
    named = [note for note in report.notes if "loader.dataset.dataset.rng" in note]
    assert len(named) == (0 if keeps else 1)
    assert keeps or "Give optimizer.track(rng=loader.dataset.dataset.rng)" in named[0]


def test_another_batch_size_is_told_once_and_not_blamed_on_the_sampler(tmp_path: Path) -> None:
    def script(size: int, until: int) -> RecoveryReport:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        loader = DataLoader(TensorDataset(torch.randn(64, 3)), size, shuffle=True)
        optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters()), tmp_path / "run", model, recheck=False)
        optimizer.track(loader=loader).recover()
        for (x,) in optimizer.batches(loader, until=until):
            model(x).sum().backward()
            optimizer.step()
        optimizer.close()
        return optimizer.report

    script(4, 3)
    report = script(2, 5)
    assert report.exact is False
    said = "the loader's batch_size was 4 and is now 2, so different batches follow"
    assert [note for note in report.notes if "batch" in note] == [said]


# A loader in a process that nobody kills


class Flaky(Numbers):
    is_down = True

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9 and self.is_down:
            raise OSError("the file server is away")
        return super().__getitem__(index)


def test_loaders_that_end_early_raise_or_are_no_loaders(tmp_path: Path) -> None:
    model, loader, flaky = torch.nn.Linear(2, 1), SOURCES["in order, last dropped"](), Flaky()
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model) as optimizer:
        optimizer.recover()
        with pytest.raises(UsageError, match="DataLoader, got a list"):
            next(optimizer.batches([1, 2, 3]))
        with pytest.raises(UsageError, match="needs a loader"):
            next(optimizer.epochs(3))
        for empty in (DataLoader([], 4), DataLoader(TensorDataset(torch.empty(0, 2)), 4)):
            assert list(optimizer.batches(empty, 5)) == []
            assert [list(epoch) for epoch in optimizer.epochs(2, empty)] == [[], []]
        seen: list[int] = []
        for _ in range(4):  # a loop behind one that was left by `break` begins anew
            for number, x in enumerate(optimizer.batches(loader, 11)):
                seen += x[:, 0].int().tolist()
                if number == 2:
                    break
        assert seen == 4 * list(range(12))
        epochs = optimizer.epochs(2, SOURCES["shuffled"]())
        next(iter(next(epochs)))
        following = next(epochs)
        assert (following, following.batch) == (1, 0), "an epoch that was left by `break` is over"
        epochs.close()
        raises = DataLoader(flaky, batch_size=4, sampler=SequentialSampler(flaky))
        batches = optimizer.batches(raises, 11)
        first = [next(batches)[0, 0].item() for _ in range(2)]
        with pytest.raises(OSError, match="file server"):
            next(batches)
        flaky.is_down = False
        assert first == [0.0, 4.0]
        for twin in (copy.deepcopy(raises), pickle.loads(pickle.dumps(raises))):  # have the plain sampler
            assert type(twin.batch_sampler) is BatchSampler
            assert [len(x) for x in twin] == [4] * 11 + [2]
