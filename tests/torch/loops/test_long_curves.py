"""Long lists of numbers in `optimizer.remember(...)`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import seed


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
