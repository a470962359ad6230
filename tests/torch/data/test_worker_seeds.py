"""`worker_seeds="batch"`: random augmentation and collating inside DataLoader workers are exact, whenever the run dies."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from tests.support import campaign
from tests.torch.lab import Attempt, differences, flatten, in_child
from tests.torch.nets import seed
from tests.torch.sources import Augmented, Make, Numbers, mixed
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer


class Whole(Augmented):
    """Loads a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        shift = torch.tensor([0.0, float(torch.randn(()))])
        return [Numbers.__getitem__(self, i) + shift for i in indices]


NOISY: dict[str, Make] = {
    "augmented": lambda **o: DataLoader(Augmented(), 4, shuffle=True, **o),
    "random collate": lambda **o: DataLoader(Numbers(), 4, shuffle=True, collate_fn=mixed, **o),
    "both, in order, generator": lambda **o: DataLoader(
        Augmented(), 4, collate_fn=mixed, generator=torch.Generator().manual_seed(1), **o
    ),
    "one by one": lambda **o: DataLoader(Subset(Augmented(), range(12)), batch_size=None, shuffle=True, **o),
    "a batch at once": lambda **o: DataLoader(Whole(), 4, shuffle=True, drop_last=True, **o),
}


def training(attempt: Attempt, *, make: Make, has_epochs: bool = False, **options: Any) -> None:
    """Some thirty batches, the body draws, too; what was seen is compared with a run that was never killed."""
    seed()
    loader = make(num_workers=2, **options)
    model = torch.nn.Linear(2, 1)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-5), model, worker_seeds="batch")
    attempt.start(optimizer, loader=loader)

    def body(batch: torch.Tensor) -> None:
        attempt.saw_next(batch)
        noise = torch.randn(()) + float(np.random.rand()) + random.random()
        ((model(batch.reshape(-1, 2)) + noise) ** 2).mean().backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()

    if has_epochs:
        for epoch in optimizer.epochs(2, loader):
            for batch in epoch:
                body(batch)
    else:
        for batch in optimizer.batches(loader, 20):
            body(batch)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def prove(script: Any, folder: Path, die_at: tuple[int, ...]) -> None:
    """Seeds make other numbers than the unlogged run's, so a logged run that nobody killed tells what is right."""
    right, last = Attempt(folder / "right"), Attempt(folder / "run")
    script(right)
    for tick in die_at:
        assert in_child(lambda tick=tick: script(Attempt(folder / "run", tick))) < 0
    script(last)
    assert differences(last.outcome(), right.outcome()) == []
    for line in Path(f"{folder / 'run'}.seen").read_text().splitlines():
        number, digest = map(int, line.split())
        assert right.seen[number] == digest, f"batch {number} differs"
    assert last.reports[0].exact is True, last.reports[0]
    assert last.kept["optimizer"].report.exact is True


@pytest.mark.sampled(2)
@pytest.mark.parametrize("persistent", [False, campaign.in_soak(True)], ids=["", "persistent"])
@pytest.mark.parametrize("name", NOISY)
def test_what_workers_draw_comes_back(name: str, persistent: bool, tmp_path: Path) -> None:
    prove(partial(training, make=NOISY[name], persistent_workers=persistent), tmp_path, (6, 10))


def test_what_workers_draw_comes_back_in_a_loop_over_epochs(tmp_path: Path) -> None:
    prove(partial(training, make=NOISY["augmented"], has_epochs=True), tmp_path, (6, 10))


def test_without_it_they_do_not_and_the_report_says_how(tmp_path: Path) -> None:
    script = partial(training, make=NOISY["augmented"])
    in_child(lambda: script(Attempt(tmp_path / "run", 6)))
    seed()
    loader = NOISY["augmented"](num_workers=2)
    model = torch.nn.Linear(2, 1)
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-5), tmp_path / "run", model) as optimizer:
        optimizer.track(loader=loader)
        report = optimizer.recover()
    assert report.exact is False
    assert any("worker_seeds was batch and is now None" in note for note in report.notes)
    assert any('worker_seeds="batch"' in note for note in report.notes)


def test_batches_epochs_and_number_of_workers_have_no_say(tmp_path: Path) -> None:
    """The numbers of a batch differ from batch to batch and from epoch to epoch, and not with the number of workers."""

    def seen(workers: int) -> list[torch.Tensor]:
        seed()
        loader = DataLoader(Augmented(), 4, num_workers=workers, generator=torch.Generator())
        model = torch.nn.Linear(2, 1)
        optimizer = LoggedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1e-5), tmp_path / str(workers), model, worker_seeds="batch"
        )
        with optimizer:
            optimizer.recover()
            return [batch[:, 1].clone() for batch in optimizer.batches(loader, 24)]

    one, two = seen(1), seen(2)
    assert differences(flatten(one), flatten(two)) == []
    assert len(set(torch.cat(two).tolist())) == 2 * 46


def test_whoever_else_iterates_gets_what_he_always_got(tmp_path: Path) -> None:
    """The dataset stays the user's own, also while the loader is tracked."""
    model = torch.nn.Linear(2, 1)
    data: Dataset[torch.Tensor] = Augmented()
    loader = DataLoader(data, 4, num_workers=2)
    seed()
    before = list(loader)
    with LoggedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-5), tmp_path / "run", model, worker_seeds="batch"
    ) as optimizer:
        optimizer.track(loader=loader)
        assert loader.dataset is data
        optimizer.recover()
        with torch.no_grad():
            seed()
            assert differences(flatten(list(loader)), flatten(before)) == []
        assert loader.dataset is data


def test_workers_that_run_already_are_refused_in_words(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    loader = DataLoader(Numbers(), 4, num_workers=1, persistent_workers=True)
    next(iter(loader))
    with (
        LoggedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1e-5), tmp_path / "run", model, worker_seeds="batch"
        ) as optimizer,
        pytest.raises(UsageError, match="Track the loader before anything iterates over it"),
    ):
        optimizer.track(loader=loader)


def test_another_setting_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    with pytest.raises(UsageError, match='"batch" or None'):
        LoggedOptimizer(torch.optim.SGD(model.parameters()), tmp_path / "run", model, worker_seeds="epoch")  # type: ignore[arg-type]
