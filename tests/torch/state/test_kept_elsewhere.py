"""State that lies beside the places where torch keeps it, and groups that change: back to the bit, or said to be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import seed
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.offline.run import OfflineRun


class Counting(torch.optim.Optimizer):
    """Signed descent whose rate falls with steps that it counts on itself."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})
        self._k = 0
        self.history: list[float] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self._k += 1
        self.history = [*self.history[-2:], 1.0 / self._k]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad.sign() * (group["lr"] * sum(self.history)))


class Hoarding(torch.optim.SGD):
    """Keeps a tensor on itself."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.01)
        self.norms = torch.zeros(1)


class Scaled(nn.Module):
    """Its extra state is part of its state_dict and of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x / self.calls


def train(attempt: Attempt, model: nn.Module, inner: torch.optim.Optimizer, change: Any = lambda number: None) -> None:
    optimizer = attempt.wrap(inner, model)
    attempt.start(optimizer)
    for number in optimizer.steps(11, stateless=True):
        change(number)
        model(torch.full((3, 5), 0.1 * number)).square().mean().backward()
        attempt.tick()
        optimizer.step()
        optimizer.zero_grad()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def net() -> nn.Sequential:
    seed()
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize("every", [1, 4, 1000])
def test_what_an_optimizer_counts_on_itself_comes_back(every: int, tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        model = net()
        inner = Counting(model.parameters())
        train(attempt, model, inner)
        attempt.keep(k=inner._k, history=inner.history)

    prove_exact(script, tmp_path / "run", (5, 3), checkpoint_every=every)


def test_what_cannot_be_stored_of_an_optimizer_is_named(tmp_path: Path) -> None:
    for _ in range(2):
        model = net()
        with LoggedOptimizer(Hoarding(model.parameters()), tmp_path / "run", model, durability="process") as optimizer:
            report = optimizer.recover()
            for _ in optimizer.steps(3):
                model(torch.ones(1, 5)).sum().backward()
                optimizer.step()
    offline = OfflineRun(tmp_path / "run" / "rank0", optimizers=[f"{__name__}:Hoarding"]).replay()
    for told in (report, offline):
        assert told.exact is None
        assert any("self.norms" in note for note in told.notes)


def test_extra_state_of_modules_comes_back(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        model = nn.Sequential(*net(), Scaled())
        train(attempt, model, torch.optim.SGD(model.parameters(), lr=0.1))
        attempt.keep(calls=model[-1].calls)

    prove_exact(script, tmp_path / "run", (5, 3))


@pytest.mark.parametrize("every", [3, 1000])
def test_parameters_that_change_groups_of_equal_size_come_back(every: int, tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        model = net()
        first, second = list(model[0].parameters()), list(model[2].parameters())
        inner = torch.optim.SGD([{"params": first, "lr": 0.1}, {"params": second, "lr": 0.01}], momentum=0.9)

        def change(number: int) -> None:
            if number == 4:
                groups = inner.param_groups
                groups[0]["params"], groups[1]["params"] = groups[1]["params"], groups[0]["params"]

        train(attempt, model, inner, change)

    prove_exact(script, tmp_path / "run", (7, 3), checkpoint_every=every)


def test_a_layer_replaced_in_the_optimizer_s_list_does_not_end_the_training(tmp_path: Path) -> None:
    model = net()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)

    def change(number: int) -> None:
        if number == 4:
            model[2] = nn.Linear(4, 2)
            inner.param_groups[0]["params"][2:] = list(model[2].parameters())

    train(Attempt(tmp_path / "run"), model, inner, change)


def test_steps_in_inference_mode_are_logged(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        model = net()
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer = attempt.wrap(inner, model)
        attempt.start(optimizer)
        for number in optimizer.steps(9, stateless=True):
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.1 * number)
            attempt.tick()
            with torch.inference_mode():
                optimizer.step()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (5, 3))
