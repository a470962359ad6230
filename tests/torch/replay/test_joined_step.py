"""Small parameters that are redone as one: the same bits as those of training, or the redo is repeated without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.lab import differences, flatten
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.replay import joined_step

STEPS = 24
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Two groups; other optimizers are redone so in test_exact_matrix."""
    groups = [{"params": parameters[:3], "lr": 0.01, "weight_decay": 0.1}, {"params": parameters[3:], "lr": 0.03}]
    return torch.optim.AdamW(groups)


class Net(nn.Module):
    """Parameters of sizes that fill no vector register, and one of a single element."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(7)
        sizes = [(3, 11), (11,), (13, 7), (1,), (129,), (17, 3, 2)]
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(size, dtype=dtype)) for size in sizes])

    def forward(self, turn: int, *, without: int | None = None) -> torch.Tensor:
        generator = torch.Generator().manual_seed(turn)
        terms = [
            (p * torch.randn(p.shape, generator=generator).to(p.dtype)).sum() ** 2 / p.numel()
            for i, p in enumerate(self.weights)
            if i != without
        ]
        return torch.stack(terms).sum()


def train(
    run: Path, make: Make, *, clip: bool = False, sometimes: bool = False, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Train, and end in the middle of the loop; return what was there then."""
    net = Net(dtype)
    optimizer = LoggedOptimizer(make(list(net.weights)), run, net, on_signal=None, checkpoint_every=10**6, recheck=False)
    optimizer.recover()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
    optimizer.track(schedule=schedule)
    for turn in optimizer.steps(10**6, stateless=True):
        if turn == STEPS:
            break
        net(turn, without=4 if sometimes and turn % 7 == 3 else None).backward()
        if clip:
            optimizer.clip_grad_norm_(0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    optimizer.training_run.close()
    return contents(net, optimizer.inner)


def contents(net: Net, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    states = [dict(optimizer.state.get(p, {})) for p in net.weights]
    return {"weights": [p.detach() for p in net.weights], "state": states}


def recover(run: Path, make: Make, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], Any]:
    """Return what recovery has left in other objects, and its report."""
    net = Net(dtype)
    places = [p.data_ptr() for p in net.weights]
    optimizer = LoggedOptimizer(make(list(net.weights)), run, net, on_signal=None, recheck=False)
    report = optimizer.recover()
    optimizer.training_run.close()
    assert [p.data_ptr() for p in net.weights] == places, "a parameter has lost its memory"
    storages = [value for state in contents(net, optimizer.inner)["state"] for value in state.values()]
    assert len({v.data_ptr() for v in storages if torch.is_tensor(v)}) == sum(map(torch.is_tensor, storages))
    return contents(net, optimizer.inner), report


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of steps that were redone with joined parameters, one by one."""
    taken: list[int] = []
    step = joined_step.JoinedStep.step

    def counted(self: joined_step.JoinedStep) -> None:
        taken.append(len(taken))
        step(self)

    monkeypatch.setattr(joined_step.JoinedStep, "step", counted)
    return taken


@pytest.mark.parametrize(
    ("how", "steps"),
    [({"clip": True}, STEPS - 1), ({"sometimes": True}, 3), ({"dtype": torch.bfloat16}, STEPS - 1)],  # the last keeps gradients
    ids=["clipped", "a gradient is absent now and then", "bfloat16"],
)
def test_joined_parameters_come_back_to_the_bit(how: dict[str, Any], steps: int, tmp_path: Path, joined: list[int]) -> None:
    trained = train(tmp_path / "run", adamw, **how)
    found, report = recover(tmp_path / "run", adamw, how.get("dtype", torch.float32))
    assert differences(flatten(trained), flatten(found)) == []
    assert (report.replayed, report.first_divergent_step, len(joined)) == (STEPS, None, steps)


@pytest.mark.parametrize("setting", ["foreach", "fused"])
def test_other_kernels_are_not_joined(setting: str, tmp_path: Path, joined: list[int]) -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, **{setting: True})

    trained = train(tmp_path / "run", make)
    found, report = recover(tmp_path / "run", make)
    assert differences(flatten(trained), flatten(found)) == []
    assert (report.first_divergent_step, joined) == (None, [])


def test_a_redo_that_differs_is_repeated_without_joining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = train(tmp_path / "run", adamw)
    taken: list[int] = []
    step = joined_step.JoinedStep.step

    def rounds_otherwise(self: joined_step.JoinedStep) -> None:
        taken.append(len(taken))
        step(self)
        if len(taken) == 9:
            self.parameters[0].data[0] += 1e-3

    monkeypatch.setattr(joined_step.JoinedStep, "step", rounds_otherwise)
    found, report = recover(tmp_path / "run", adamw)
    assert differences(flatten(trained), flatten(found)) == []
    assert (report.first_divergent_step, len(taken)) == (None, STEPS - 1)
