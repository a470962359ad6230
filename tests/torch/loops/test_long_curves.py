"""Long lists of numbers in `optimizer.remember(...)`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.torch.lab import Attempt, in_child, prove_exact
from tests.torch.nets import seed
from tranlogs.base.errors import UnencodableState
from tranlogs_torch import LoggedOptimizer


def test_long_curve_grows_on_over_kills_and_stays_one_list(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Linear(3, 2)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)
        curve = [i / 3 for i in range(2045)]  # the third block begins within the run
        state = optimizer.remember(curve=curve, same=[curve], turns=[7] * 1500)
        attempt.start(optimizer)
        for turn in optimizer.steps(12, stateless=True):
            loss = model(torch.randn(4, 3)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            attempt.tick()
            optimizer.step()
            state.curve.append(loss.item())
            state.turns[turn] = turn
        assert state.curve is state.same[0] is curve
        attempt.keep(model=model, curve=state.curve, turns=state.turns)
        optimizer.close()

    prove_exact(script, tmp_path / "run", [4, 3, 5])


def test_item_that_differs_in_a_unit_that_is_computed_again_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")

    def train(dies: bool) -> None:
        seed()
        model = nn.Linear(3, 2)
        optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), tmp_path / "run", model)
        state = optimizer.remember(curve=[0.5] * 1500)
        optimizer.recover()
        for turn in optimizer.steps(8, stateless=True):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().sum().backward()
            optimizer.step()
            state.curve.append(time.time())
            if dies and turn == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / "report").write_text("\n".join(optimizer.report.notes))
        optimizer.close()

    assert in_child(lambda: train(dies=True)) == -signal.SIGKILL
    assert in_child(lambda: train(dies=False)) == 0
    said = (tmp_path / "report").read_text()
    assert "state.curve[1504] is 1" in said
    assert "give it to optimizer.remember_times(curve=...)" in said


def test_item_of_another_kind_in_a_very_long_list_is_named(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), tmp_path / "run", model)
    with pytest.raises(UnencodableState, match=r"state\.curve\[100001\] is an int in a list of 100,003 float numbers"):
        optimizer.remember(curve=[0.5] * 100_001 + [1, 0.5])
    optimizer.remember(curve=[0.5] * 100_001 + [1.0, 0.5])
    optimizer.close()
