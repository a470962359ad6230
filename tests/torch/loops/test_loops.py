"""Loops that people write come back to the bit, and what cannot be right is refused with what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Attempt, prove_exact
from tests.torch.loops.scripts import LOOPS, OWN_LOOPS
from tests.torch.nets import tokens
from tranlogs.base.errors import UsageError


@pytest.mark.crash
@pytest.mark.parametrize("name", [*LOOPS, *OWN_LOOPS])
def test_a_killed_loop_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    """One life dies after the other, each at another place; the resume is proven, and says so."""
    torch._dynamo.reset()
    script, die_at = {**LOOPS, **OWN_LOOPS}[name]
    prove_exact(script, tmp_path / "run", die_at, is_exact=True if name in LOOPS else None)


def test_gradient_that_is_written_while_its_record_waits_for_the_writer(tmp_path: Path) -> None:
    prove_exact(LOOPS["gradients decayed"][0], tmp_path / "run", (16,), writer="thread")


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (range(10), "optimizer.epochs(10, ...) yields the numbers from 0 on, and leaves finished epochs out"),
        (range(1, 11), "The numbers of the range are epoch + 1"),
        ([0, 1], "optimizer.epochs(10, data) yields the numbers of ten epochs, from 0 on"),
    ],
    ids=str,
)
def test_epochs_of_a_range_is_refused_with_what_to_write(count: Any, told: str, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(UsageError, match="give the number of epochs of the whole run") as caught:
        optimizer.epochs(count, tokens(8))
    assert told in str(caught.value)
    optimizer.close()


@pytest.mark.parametrize("options", [{"batch_size": 3, "shuffle": True}, {"batch_size": None}], ids=str)
def test_an_epoch_stands_for_its_loader(options: dict[str, Any], tmp_path: Path) -> None:
    """Training functions print `len(loader.dataset)`, and call `loader.sampler.set_epoch`."""
    model, loader = nn.Linear(2, 2), DataLoader(TensorDataset(torch.ones(9, 2)), **options)
    sampler = loader.sampler
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    optimizer.track(loader=loader).recover()
    for epoch in optimizer.epochs(2):
        assert epoch.dataset is loader.dataset
        assert (epoch.batch_size, len(epoch)) == (options["batch_size"], len(loader))
        assert epoch.sampler is sampler
        for (x,) in epoch:
            model(x).sum().backward()
            optimizer.step()
    optimizer.close()


def test_an_epoch_without_a_batch_is_refused_with_what_to_write(tmp_path: Path) -> None:
    model, loader = nn.Linear(2, 1), DataLoader(TensorDataset(torch.rand(4, 2)))
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
    optimizer.track(loader=loader).recover()
    with pytest.raises(UsageError, match=r"epoch 1 gave no batch.*`for batch in epoch`, not `for batch in loader`"):
        for _ in optimizer.epochs(2):
            pass
    optimizer.close()
