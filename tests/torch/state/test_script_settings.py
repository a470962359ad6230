"""A script that was changed between two starts: what is noticed, and what holds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, StepLR

from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer

Change = Callable[[LoggedOptimizer, Any], None]


@pytest.fixture(autouse=True, params=["1", "0"], ids=["recheck", "no recheck"])
def rechecks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", request.param)


def start(
    run: Path,
    until: int,
    *,
    p: float = 0.5,
    make: Callable[[Any], Any] = lambda optimizer: CosineAnnealingLR(optimizer, T_max=10),
    change: Change = lambda optimizer, scheduler: None,
) -> tuple[Any, list[float]]:
    """Train on to a number of steps; return the report and the learning rates that were used."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(p), nn.Linear(4, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = []
    with LoggedOptimizer(inner, run, model, segment_bytes=1 << 20) as optimizer:
        scheduler = make(optimizer)
        optimizer.track(scheduler=scheduler)
        optimizer.recover()
        change(optimizer, scheduler)
        for _ in optimizer.steps(until, stateless=True):
            model(torch.ones(2, 3)).sum().backward()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return optimizer.report, rates


def test_another_dropout_is_noticed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"
    assert start(run, 3)[0].exact is True
    report, _ = start(run, 5)
    assert report.exact is True
    assert [note for note in report.notes if not note.startswith("rates starts over")] == []
    with caplog.at_level(logging.WARNING, "tranlogs"):
        report, _ = start(run, 7, p=0.1)
    text = "the script has changed: 1 was Dropout(p=0.5, inplace=False), now it is Dropout(p=0.1, inplace=False)"
    assert report.exact is None
    assert [note for note in report.notes if text in note], report.notes
    assert text in caplog.text


def test_another_length_of_a_schedule_is_noticed_and_the_runs_own_holds(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", 8)[1]
    run, rates = tmp_path / "run", []
    for until, length in ((3, 10), (5, 20), (8, 20)):
        report, more = start(run, until, make=lambda optimizer, length=length: CosineAnnealingLR(optimizer, T_max=length))
        rates += more
        text = "the script has changed: T_max of the tracked 'scheduler' was 10, now it is 20; the run's own value holds"
        assert any(text in note for note in report.notes) is (length == 20), report.notes
        assert report.exact is True
    assert rates == whole


def set_rate(optimizer: LoggedOptimizer, scheduler: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.7


def set_both(optimizer: LoggedOptimizer, scheduler: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.7
    scheduler.base_lrs[0] = 0.7


def test_a_learning_rate_that_a_lambda_would_overrule_is_refused_by_name(tmp_path: Path) -> None:
    def make(optimizer: Any) -> Any:
        return LambdaLR(optimizer, lambda step: 1.0)

    run = tmp_path / "run"
    start(run, 3, make=make)
    wanted = r"run: lr of parameter group 0 of optimizer 'main' was set after recover.*'scheduler' \(LambdaLR\).*base_lrs\[0\]"
    with pytest.raises(UsageError, match=wanted):
        start(run, 5, make=make, change=set_rate)
    assert start(run, 5, make=make, change=set_both)[1] == [0.7, 0.7]
    assert start(run, 6, make=make)[1] == [0.7]


def test_a_learning_rate_set_after_recovery_is_kept_where_a_scheduler_scales_it(tmp_path: Path) -> None:
    def make(optimizer: Any) -> Any:
        return StepLR(optimizer, 100)

    start(tmp_path / "run", 3, make=make)
    assert start(tmp_path / "run", 5, make=make, change=set_rate)[1] == [0.7, 0.7]
