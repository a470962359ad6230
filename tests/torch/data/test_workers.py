"""Loaders with workers go on at the exact next batch; what workers draw is named, or exact with `worker_seeds="batch"`."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.support import campaign
from tests.torch.data.test_data import training
from tests.torch.lab import Attempt, differences, flatten, in_child, prove_exact, uninterrupted
from tests.torch.nets import seed
from tests.torch.sources import NOISY, SOURCES, STATEFUL, Augmented, Make, Numbers, Shuffling
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.15

SEEDED = {"worker_seeds": "batch"}
WITH_WORKERS: dict[str, Make] = {
    name: (SOURCES | STATEFUL)[name]
    for name in (
        "shuffled",
        "one by one",
        "eager draws",
        "lazy draws",
        "counter with state",
        "torchdata, shuffled",
    )
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", ""])
@pytest.mark.parametrize("name", WITH_WORKERS)
def test_next_batch_is_the_exact_one_with_workers(name: str, persistent: bool, tmp_path: Path) -> None:
    script = partial(training, make=WITH_WORKERS[name], num_workers=2, persistent_workers=persistent)
    prove_exact(script, tmp_path / "run", (6, 9), checkpoint_every=1000)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "make",
    [partial(SOURCES["stream"], num_workers=2), lambda **o: DataLoader(Shuffling(), 4, num_workers=1, **o)],
    ids=["stream", "shuffle buffer"],
)
def test_streams_of_workers_come_back(make: Make, tmp_path: Path) -> None:
    """A worker has random numbers to itself."""
    prove_exact(partial(training, make=make), tmp_path / "run", (9,), checkpoint_every=1000)


@pytest.mark.parametrize("workers", [(0, 2), campaign.in_soak((2, 0))])
def test_number_of_workers_may_change(workers: tuple[int, int], tmp_path: Path) -> None:
    """A sampler that draws when it is asked for an iterator is asked twice with workers: as often as before the crash."""
    before, after = (partial(training, make=SOURCES["eager draws"], num_workers=n) for n in workers)
    right, last = uninterrupted(before), Attempt(tmp_path / "run")
    assert in_child(lambda: before(Attempt(tmp_path / "run", 8))) < 0
    after(last)
    assert min(last.seen) == 6
    assert [last.seen[n] for n in range(6, 12)] == [right.seen[n] for n in range(6, 12)]  # the rest of the epoch


@pytest.mark.sampled(1)
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("epochs", [0, 2])
@pytest.mark.parametrize("name", NOISY)
def test_what_seeded_workers_draw_comes_back(name: str, persistent: bool, epochs: int, tmp_path: Path) -> None:
    """Seeds make other numbers than the unlogged run's, so a logged run that nobody killed tells what is right."""
    workers = {"num_workers": 2, "persistent_workers": persistent}
    script = partial(training, make=NOISY[name], per_epoch=epochs, options=SEEDED, **workers)
    right = Attempt(tmp_path / "right")
    script(right)
    prove_exact(script, tmp_path / "run", (6, 10), right=right)


def drawing_seldom(batch: list[torch.Tensor]) -> torch.Tensor:
    """Collate a batch; draw a number if a sample of the last ones is in it, without using it."""
    if any(sample[0] > 40 for sample in batch):
        random.random()
    return torch.stack(batch)


@pytest.mark.parametrize(
    ("make", "persistent"),
    [(NOISY["augmented"], False), (lambda **o: DataLoader(Numbers(), 4, collate_fn=drawing_seldom, **o), True)],
    ids=["dataset", "collating, seldom"],
)
def test_what_workers_draw_is_named(make: Make, persistent: bool, tmp_path: Path) -> None:
    """Numbers that workers draw do not come back, which the report of a resume in the middle of an epoch says."""
    script = partial(training, make=make, num_workers=1, persistent_workers=persistent)
    in_child(lambda: script(Attempt(tmp_path / "run", 15)))
    last = Attempt(tmp_path / "run")
    script(last)
    report = last.final_report()
    assert report.exact is not True
    assert any("drawn inside DataLoader workers" in note for note in report.notes)


def looking_before(attempt: Attempt) -> None:
    """Look at the data before the loader is tracked: persistent workers run then, and may have drawn."""
    seed()

    def make(**options: Any) -> DataLoader[Any]:
        loader = DataLoader(Numbers(), 4, shuffle=True, num_workers=1, persistent_workers=True, **options)
        list(loader)
        return loader

    training(attempt, make=make)


def test_workers_that_ran_before_are_not_believed(tmp_path: Path) -> None:
    last = prove_exact(looking_before, tmp_path / "run", (6, 15), is_exact=None, checkpoint_every=1000)
    assert any("drawn inside DataLoader workers" in note for note in last.final_report().notes)


def test_without_seeds_the_report_says_how(tmp_path: Path) -> None:
    script = partial(training, make=NOISY["augmented"], num_workers=2)
    in_child(lambda: script(Attempt(tmp_path / "run", 6), options=SEEDED))
    last = Attempt(tmp_path / "run")
    script(last)
    report = last.reports[0]
    assert report.exact is False
    assert any("worker_seeds was batch and is now None" in note for note in report.notes)
    assert any('worker_seeds="batch"' in note for note in report.notes)


def opened(run: Path, **options: Any) -> LoggedOptimizer:
    model = torch.nn.Linear(2, 1)
    return LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-5), run, model, **(SEEDED | options))


def test_batches_epochs_and_number_of_workers_have_no_say(tmp_path: Path) -> None:
    """The numbers of a batch differ from batch to batch and from epoch to epoch, and not with the number of workers."""

    def seen(workers: int) -> list[torch.Tensor]:
        seed()
        loader = DataLoader(Augmented(), 4, num_workers=workers, generator=torch.Generator())
        with opened(tmp_path / str(workers)) as optimizer:
            optimizer.recover()
            return [batch[:, 1].clone() for batch in optimizer.batches(loader, 24)]

    one, two = seen(1), seen(2)
    assert differences(flatten(one), flatten(two)) == []
    assert len(set(torch.cat(two).tolist())) == 2 * 46


def test_whoever_else_iterates_gets_what_he_always_got(tmp_path: Path) -> None:
    """The dataset stays the user's own, also while the loader is tracked."""
    data: Dataset[torch.Tensor] = Augmented()
    loader = DataLoader(data, 4, num_workers=2)
    seed()
    before = list(loader)
    with opened(tmp_path / "run") as optimizer:
        optimizer.track(loader=loader)
        assert loader.dataset is data
        optimizer.recover()
        with torch.no_grad():
            seed()
            assert differences(flatten(list(loader)), flatten(before)) == []
        assert loader.dataset is data


def test_workers_that_run_already_and_other_settings_are_refused_in_words(tmp_path: Path) -> None:
    loader = DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True)
    next(iter(loader))
    with opened(tmp_path / "run") as optimizer, pytest.raises(UsageError, match="before anything iterates over it"):
        optimizer.track(loader=loader)
    with pytest.raises(UsageError, match='"batch" or None'):
        opened(tmp_path / "other", worker_seeds="epoch")
