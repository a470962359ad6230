"""`epoch.enumerate()` and `batches(..., enumerate=True)`: the true numbers of batches after a crash."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import seed


def test_an_epoch_counts_its_own_batches(tmp_path: Path) -> None:
    """Every third batch has a rate of its own, as a warm-up within the epoch has."""

    def script(attempt: Attempt) -> None:
        seed()
        model, loader = nn.Linear(3, 2), DataLoader(torch.randn(7, 3), shuffle=True)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        attempt.start(optimizer, loader=loader)
        for epoch in optimizer.epochs(3, loader):
            for number, x in epoch.enumerate(start=epoch):
                attempt.saw(10 * epoch + number - epoch, x)
                for group in optimizer.param_groups:
                    group["lr"] = 0.01 * (1 + (number - epoch) % 3)
                optimizer.zero_grad()
                model(x).square().sum().backward()
                attempt.tick()
                optimizer.step()
        attempt.keep(model=model)
        optimizer.close()

    last = prove_exact(script, tmp_path / "run", [3, 2, 7])
    assert min(last.seen) > 10, "the last life began in the middle of the second epoch"
    assert max(last.seen) == 26


def test_batches_are_counted_over_the_whole_run(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        seed()
        model, loader = nn.Linear(3, 2), DataLoader(torch.randn(7, 3), shuffle=True)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        attempt.start(optimizer, loader=loader)
        for number, x in optimizer.batches(loader, until=17, enumerate=True):
            attempt.saw(number, x)
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (1 + number)
            optimizer.zero_grad()
            model(x).square().sum().backward()
            attempt.tick()
            optimizer.step()
        attempt.keep(model=model)
        optimizer.close()

    last = prove_exact(script, tmp_path / "run", [3, 2, 7])
    assert (min(last.seen), max(last.seen)) == (9, 16)
