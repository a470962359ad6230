"""State beside the places where torch keeps it, and gradients that wait at a boundary: back to the bit, or named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import campaign
from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tests.torch.scripts import simple
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


def net() -> nn.Sequential:
    seed()
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def counted(attempt: Attempt) -> None:
    """What an optimizer counts on itself, and the extra state of a module."""
    model = nn.Sequential(*net(), Scaled())
    inner = Counting(model.parameters())
    simple(attempt, model, inner)
    attempt.keep(k=inner._k, history=inner.history, calls=model[-1].calls)


def regrouped(attempt: Attempt) -> None:
    """Parameters change between groups of equal size."""
    model = net()
    first, second = list(model[0].parameters()), list(model[2].parameters())
    inner = torch.optim.SGD([{"params": first, "lr": 0.1}, {"params": second, "lr": 0.01}], momentum=0.9)

    def change(number: int, optimizer: Any) -> None:
        if number == 4:
            groups = inner.param_groups
            groups[0]["params"], groups[1]["params"] = groups[1]["params"], groups[0]["params"]

    simple(attempt, model, inner, change=change)


def in_inference_mode(attempt: Attempt) -> None:
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


@pytest.mark.parametrize(
    ("script", "die_at", "every"),
    [
        (counted, (5, 3), 4),
        (regrouped, (7,), 3),
        (regrouped, (7,), 1000),
        (in_inference_mode, (5,), 1000),
    ],
)
def test_state_elsewhere_comes_back(
    script: Callable[[Attempt], None], die_at: tuple[int, ...], every: int, tmp_path: Path
) -> None:
    prove_exact(script, tmp_path / "run", die_at, checkpoint_every=every)


def test_what_cannot_be_stored_of_an_optimizer_is_named(tmp_path: Path) -> None:
    for _ in range(2):
        model = net()
        with LoggedOptimizer(Hoarding(model.parameters()), tmp_path / "run", model, recheck=False) as optimizer:
            report = optimizer.recover()
            for _ in optimizer.steps(3):
                model(torch.ones(1, 5)).sum().backward()
                optimizer.step()
    offline = OfflineRun(tmp_path / "run" / "rank0", optimizers=[f"{__name__}:Hoarding"]).replay()
    for told in (report, offline):
        assert told.exact is None
        assert any("self.norms" in note for note in told.notes)


def test_a_layer_replaced_in_the_optimizer_s_list_does_not_end_the_training(tmp_path: Path) -> None:
    model = net()

    def change(number: int, optimizer: Any) -> None:
        if number == 4:
            model[2] = nn.Linear(4, 2)
            optimizer.param_groups[0]["params"][2:] = list(model[2].parameters())

    simple(Attempt(tmp_path / "run"), model, torch.optim.AdamW(model.parameters(), lr=0.01), change=change)


# Gradients that wait for a step at a boundary


def two_speeds(attempt: Attempt, *, out_of_place: bool, change_at: int) -> None:
    """One optimizer steps with every batch; the other, too, and from some batch on with every second or third."""
    seed()
    model = nn.ModuleDict({"often": nn.Linear(4, 4), "seldom": nn.Linear(4, 3)})
    often = attempt.wrap(torch.optim.SGD(model["often"].parameters(), lr=0.05), model)
    seldom = attempt.add_optimizer(often, torch.optim.AdamW(model["seldom"].parameters(), lr=0.01), "seldom")
    attempt.start(often)
    for number in often.steps(13, stateless=True):
        often.zero_grad()
        if number < change_at or number % 3 == 0:
            seldom.zero_grad()
        loss = model["seldom"](model["often"](torch.randn(3, 4)).tanh()).square().sum()
        loss.backward(create_graph=out_of_place)
        attempt.tick()
        often.step()
        if number < change_at or number % 3 == 2:
            seldom.step()
        attempt.tick()
    attempt.keep(model=model, often=often, seldom=seldom)
    often.close()


class Averaging(torch.optim.SGD):
    """Not torch's own: redone step by step."""


def reading(attempt: Attempt, *, kind: type[torch.optim.Optimizer], clips: bool) -> None:
    """Gradients that the last step has used are read before they are cleared; from the tenth batch on they are kept."""
    seed()
    model = Mixed()
    optimizer = attempt.wrap(kind(model.parameters(), lr=0.01), model)  # type: ignore[call-arg]
    attempt.start(optimizer)
    for number, batch in enumerate(optimizer.batches(tokens(), until=14)):
        number += attempt.reports[0].batch if attempt.reports else 0
        before = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        if number < 8:
            optimizer.zero_grad(set_to_none=number % 2 == 0)
        loss_of(model, batch).backward()
        for parameter, old in zip(model.parameters(), before, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(old, alpha=0.3)
        if clips:
            optimizer.clip_grad_norm_(0.5)
        attempt.tick()
        optimizer.step()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.filterwarnings("ignore:Using backward")  # create_graph keeps what it made alive until the next backward
@pytest.mark.parametrize(
    ("die_at", "change_at", "out_of_place"),
    campaign.each_once([(9,), (14,)], [0, 5, 100], [False, True]),
    ids=str,
)
def test_gradients_that_wait_come_back(out_of_place: bool, change_at: int, die_at: tuple[int, ...], tmp_path: Path) -> None:
    prove_exact(partial(two_speeds, out_of_place=out_of_place, change_at=change_at), tmp_path / "run", die_at)


@pytest.mark.parametrize(
    ("die_at", "kind", "clips"), campaign.each_once([(5,), (11, 3)], [torch.optim.AdamW, Averaging], [False, True]), ids=str
)
def test_used_gradients_that_are_read_come_back(
    kind: type[torch.optim.Optimizer], clips: bool, die_at: tuple[int, ...], tmp_path: Path
) -> None:
    prove_exact(partial(reading, kind=kind, clips=clips), tmp_path / "run", die_at, checkpoint_every=1000)


@pytest.mark.parametrize("clears_in_place", [False, True])
def test_batches_without_a_step_count_behind_a_recovery_too(clears_in_place: bool, tmp_path: Path) -> None:
    """The gradients that came back are those of a step that was taken, and wait for none."""
    numbers: list[list[int]] = []
    for until in (4, 7, 8):
        seed()
        model = nn.Linear(3, 2)
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        with LoggedOptimizer(inner, tmp_path / "run", model, checkpoint_every=2, recheck=False) as optimizer:
            optimizer.recover()
            numbers.append([])
            for number in optimizer.steps(until):
                numbers[-1].append(number)
                if number < 4:
                    optimizer.zero_grad()
                    model(torch.randn(3, 3)).square().sum().backward()
                    optimizer.step()
                    if clears_in_place:
                        optimizer.zero_grad(set_to_none=False)
                    optimizer.training_run.journal.wait_checkpoint()
                else:
                    torch.rand(1)
    assert numbers == [[0, 1, 2, 3], [4, 5, 6], [7]]
