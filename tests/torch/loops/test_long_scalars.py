"""Curves of `log_scalars` that grow for a whole run: bounded, the newest points in full, and the same after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch._dynamo  # the first step imports it, which would take every life a second

from tests.torch.lab import Attempt, in_child
from tests.torch.nets import seed
from tranlogs.training import scalars

POINTS_MAX = 16
TURNS = 100


def train(attempt: Attempt) -> dict[str, tuple[list[int], list[float]]]:
    seed()
    model = torch.nn.Linear(2, 1)
    optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=1e-3), model)
    attempt.start(optimizer)
    for turn in optimizer.steps(TURNS, stateless=True):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        attempt.tick()
        optimizer.step()
        optimizer.log_scalars(turn=turn, **({"rare": turn} if turn % 10 == 3 else {}))
    optimizer.close()
    return dict(optimizer.scalars)


@pytest.mark.parametrize("checkpoint_every", [7, 1000])
def test_curve_is_bounded_and_the_same_after_kills(
    checkpoint_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalars, "CURVE_POINTS_MAX", POINTS_MAX)
    options = {"checkpoint_every": checkpoint_every}
    whole = train(Attempt(tmp_path / "whole", **options))
    for die_at in (15, 20, 40):
        in_child(lambda die_at=die_at: train(Attempt(tmp_path / "run", die_at, **options)))
    assert train(Attempt(tmp_path / "run", **options)) == whole
    steps, values = whole["turn"]
    assert POINTS_MAX // 2 <= len(steps) <= POINTS_MAX
    assert values == [step - 1 for step in steps]
    assert steps[0] == 1
    assert steps[-POINTS_MAX // 2 :] == list(range(TURNS - POINTS_MAX // 2 + 1, TURNS + 1)), "the newest points in full"
    assert whole["rare"][1] == list(range(3, TURNS, 10)), "a short curve is whole"
