"""What a report says of a script: what was changed between two starts, what is not tracked, and the line to write."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch._dynamo  # the first step imports it, which would take every life a second
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR, StepLR
from torch.utils.data import DataLoader

from tranlogs.base.errors import UsageError
from tranlogs.training import Face
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.state.caveats import Case, advise

Change = Callable[[LoggedOptimizer, Any], None]

# Changed between two starts


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


@pytest.mark.parametrize("rechecks", [True, False])
def test_a_learning_rate_that_a_lambda_would_overrule_is_refused_by_name(
    rechecks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", str(int(rechecks)))

    def make(optimizer: Any) -> Any:
        return LambdaLR(optimizer, lambda step: 1.0)

    run = tmp_path / "run"
    start(run, 3, make=make)
    wanted = r"run: lr of parameter group 0 of optimizer 'main' was set after recover.*'scheduler' \(LambdaLR\).*base_lrs\[0\]"
    with pytest.raises(UsageError, match=wanted):
        start(run, 5, make=make, change=set_rate)
    report, rates = start(run, 5, make=make, change=set_both)
    assert rates == [0.7] * (5 - report.step)
    assert report.step == (2 if rechecks else 3), "the refused start has not come to its end"
    assert start(run, 6, make=make)[1] == [0.7]


def test_a_learning_rate_set_after_recovery_is_kept_where_a_scheduler_scales_it(tmp_path: Path) -> None:
    def make(optimizer: Any) -> Any:
        return StepLR(optimizer, 100)

    start(tmp_path / "run", 3, make=make)
    assert start(tmp_path / "run", 5, make=make, change=set_rate)[1] == [0.7, 0.7]


# Schedulers that are not tracked are found by what they do to their optimizer


class Prepared(torch.optim.Optimizer):
    """Keeps another optimizer, as accelerate's does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.param_groups, self.defaults = optimizer, optimizer.param_groups, optimizer.defaults

    def step(self, closure: Any = None) -> None:
        self.optimizer.step()


def by_hand(optimizer: LoggedOptimizer) -> None:
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]


def resumed_report(run: Path, make: Callable[[LoggedOptimizer], Any], *, tracks: bool = False, steps: bool = False) -> Any:
    for count in (3, 4):
        parameter = torch.nn.Linear(2, 1)
        loader = DataLoader(torch.ones(4, 2))  # type: ignore[arg-type]  # a tensor has rows
        optimizer = LoggedOptimizer(torch.optim.SGD(parameter.parameters(), lr=0.1), run, parameter, durability="process")
        made = make(optimizer)
        optimizer.track(**({"scheduler": made} if tracks else {}))
        report = optimizer.recover()
        for x in optimizer.batches(loader, until=count):
            parameter(x).sum().backward()
            if steps:
                made.optimizer.step()
                made.step()
            else:
                optimizer.step()
        optimizer.close()
    return report


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: StepLR(optimizer, 2),
        lambda optimizer: LambdaLR(optimizer.inner, lambda step: 1.0),
    ],
    ids=["on the wrapper", "on the inner optimizer"],
)
def test_a_scheduler_that_is_not_tracked_is_named(make: Callable[[LoggedOptimizer], Any], tmp_path: Path) -> None:
    report = resumed_report(tmp_path / "run", make)
    assert report.exact is None
    assert any("a scheduler was created" in note for note in report.notes), report.notes


def test_a_scheduler_that_is_tracked_is_none_that_is_missing(tmp_path: Path) -> None:
    assert resumed_report(tmp_path / "run", lambda optimizer: StepLR(Prepared(optimizer), 2), tracks=True).exact is True


def test_a_scheduler_on_an_optimizer_around_the_logged_one_is_named_once_it_has_stepped(tmp_path: Path) -> None:
    def make(optimizer: LoggedOptimizer) -> StepLR:
        return StepLR(Prepared(optimizer), 2)

    report = resumed_report(tmp_path / "run", make, steps=True)
    assert any("optimizer.track(made=made)" in note for note in report.notes), report.notes
    tracked = resumed_report(tmp_path / "tracked", make, tracks=True, steps=True)
    assert tracked.exact is True
    assert not tracked.notes


def test_the_parts_of_a_tracked_scheduler_are_not_named(tmp_path: Path) -> None:
    model, loader = torch.nn.Linear(2, 1), DataLoader(torch.ones(4, 2))  # type: ignore[arg-type]  # a tensor has rows
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model) as optimizer:
        first, then = StepLR(optimizer, 2), LambdaLR(optimizer, lambda step: 1.0)
        scheduler = SequentialLR(optimizer, [first, then], milestones=[2])
        optimizer.track(scheduler=scheduler).recover()
        for x in optimizer.batches(loader, until=4):
            model(x).sum().backward()
            optimizer.step()
            scheduler.step()
    assert not optimizer.report.notes


def test_learning_rates_that_are_computed_by_hand_are_no_scheduler(tmp_path: Path) -> None:
    """As modded-nanogpt and timm compute them: `initial_lr` is in the groups, and nothing counts steps."""
    report = resumed_report(tmp_path / "run", by_hand)
    assert report.exact is True, report.notes


# Advice is in the words of the face through which the run is used

LINES: dict[Face, tuple[str, ...]] = {  # objects that a line to add may use
    "script": ("optimizer.", "epoch.", "track("),
    "accelerate": ("log.", "epoch.", "track("),
    "callback": (),
}
OBJECTS = re.compile(r"\b(optimizer|log|epoch)\.(?=\w+\()|\btrack\(|LoggedOptimizer\(|log_prepared\(")


@pytest.mark.parametrize("face", get_args(Face))
@pytest.mark.parametrize("case", get_args(Case))
def test_a_line_to_add_uses_what_the_face_has(face: Face, case: Case) -> None:
    used = {found.group() for found in OBJECTS.finditer(advise(case, face))}
    assert used <= set(LINES[face])
