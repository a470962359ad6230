"""Schedulers that are not tracked are found by what they do to their optimizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.utils.data import DataLoader

from tranlogs_torch import LoggedOptimizer

Make = Callable[[LoggedOptimizer], Any]


class Prepared(torch.optim.Optimizer):
    """Keeps another optimizer, as accelerate's does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.param_groups, self.defaults = optimizer, optimizer.param_groups, optimizer.defaults

    def step(self, closure: Any = None) -> None:
        self.optimizer.step()


def by_hand(optimizer: LoggedOptimizer) -> None:
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]


def resumed_report(run: Path, make: Make, *, tracks: bool = False) -> Any:
    for count in (3, 4):
        parameter = torch.nn.Linear(2, 1)
        loader = DataLoader(torch.ones(4, 2))  # type: ignore[arg-type]  # a tensor has rows
        optimizer = LoggedOptimizer(torch.optim.SGD(parameter.parameters(), lr=0.1), run, parameter, durability="process")
        made = make(optimizer)
        optimizer.track(**({"scheduler": made} if tracks else {}))
        report = optimizer.recover()
        for x in optimizer.batches(loader, until=count):
            parameter(x).sum().backward()
            optimizer.step()
        optimizer.close()
    return report


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: StepLR(optimizer, 2),
        lambda optimizer: LambdaLR(optimizer.inner, lambda step: 1.0),
        lambda optimizer: StepLR(Prepared(optimizer), 2),
    ],
    ids=["on the wrapper", "on the inner optimizer", "on an optimizer around it"],
)
def test_a_scheduler_that_is_not_tracked_is_named(make: Make, tmp_path: Path) -> None:
    report = resumed_report(tmp_path / "run", make)
    assert report.exact is None
    assert any("a scheduler was created" in note for note in report.notes), report.notes
    assert resumed_report(tmp_path / "tracked", make, tracks=True).exact is True


def test_learning_rates_that_are_computed_by_hand_are_no_scheduler(tmp_path: Path) -> None:
    """As modded-nanogpt and timm compute them: `initial_lr` is in the groups, and nothing counts steps."""
    report = resumed_report(tmp_path / "run", by_hand)
    assert report.exact is True, report.notes
