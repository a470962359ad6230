"""`GradScaler(enabled=False)`, the no-op that scripts use without a GPU, changes nothing and is not warned about."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import seed
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer


def training(attempt: Attempt, *, is_tracked: bool, scaler_first: bool = False) -> None:
    seed()
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    loader = DataLoader(TensorDataset(torch.randn(24, 2)), batch_size=4, shuffle=True)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    attempt.start(optimizer, loader=loader, **({"scaler": scaler} if is_tracked else {}))
    for (x,) in optimizer.batches(loader, until=18):
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=False):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        attempt.tick()
        scaler.step(optimizer)
        scaler.update()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.parametrize("is_tracked", [False, True], ids=["untracked", "tracked"])
def test_a_disabled_scaler_is_no_obstacle(is_tracked: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tranlogs"):
        last = prove_exact(partial(training, is_tracked=is_tracked), tmp_path / "run", (4, 9))
    assert [record.getMessage() for record in caplog.records] == []
    assert not last.final_report().notes


def run_once(run: Path, *, enabled: bool, steps: int) -> LoggedOptimizer:
    seed()
    model = torch.nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=8.0)
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), run, model, segment_bytes=1 << 20)
    optimizer.track(scaler=scaler).recover()
    for _ in optimizer.steps(steps):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return optimizer


@pytest.mark.parametrize("was_enabled", [False, True])
def test_a_scaler_that_was_switched_on_or_off_is_named(was_enabled: bool, tmp_path: Path) -> None:
    run_once(tmp_path / "run", enabled=was_enabled, steps=3).close()
    optimizer = run_once(tmp_path / "run", enabled=not was_enabled, steps=6)
    report = optimizer.report
    optimizer.close()
    assert optimizer.watermarks["step"] == 6
    assert report.exact is False
    assert any("GradScaler" in note and "enabled" in note for note in report.notes), report.notes


def test_an_empty_state_of_anything_else_is_still_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Empty:
        def state_dict(self) -> dict[str, object]:
            return {}

        def load_state_dict(self, state: dict[str, object]) -> None:
            raise UsageError("not reached")

    model = torch.nn.Linear(2, 1)
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), tmp_path / "run", model)
    with caplog.at_level(logging.WARNING, "tranlogs"):
        optimizer.track(thing=Empty())
    assert "its state_dict is empty" in caplog.text
    optimizer.close()
