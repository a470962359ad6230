"""Gradients that wait for a step at a boundary are state, whatever the loop did with them before."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support import campaign
from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tranlogs_torch import LoggedOptimizer


def two_speeds(attempt: Attempt, *, out_of_place: bool, change_at: int) -> None:
    """One optimizer steps with every batch; the other, too, and from some batch on with every second or third."""
    seed()
    model = nn.ModuleDict({"often": nn.Linear(4, 4), "seldom": nn.Linear(4, 3)})
    often = attempt.wrap(torch.optim.SGD(model["often"].parameters(), lr=0.05), model)
    seldom = attempt.add_optimizer(often, torch.optim.AdamW(model["seldom"].parameters(), lr=0.01), "seldom")
    attempt.start(often)
    for number in often.steps(16, stateless=True):
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


@pytest.mark.filterwarnings("ignore:Using backward")  # create_graph keeps what it made alive until the next backward
@pytest.mark.parametrize(
    ("die_at", "change_at", "out_of_place"),
    campaign.pairwise([(9, 4), (13, 6), (14, 8)], [0, 5, 100], [False, True]),
    ids=str,
)
def test_gradients_that_wait_come_back(out_of_place: bool, change_at: int, die_at: tuple[int, int], tmp_path: Path) -> None:
    script = partial(two_speeds, out_of_place=out_of_place, change_at=change_at)
    prove_exact(script, tmp_path / "run", die_at)


def reading(attempt: Attempt, *, kind: str, clips: bool) -> None:
    """Gradients that the last step has used are read before they are cleared; from the tenth batch on they are kept."""
    seed()
    model = Mixed()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01) if kind == "by tensor" else Averaging(model.parameters(), lr=0.01)
    optimizer = attempt.wrap(inner, model)
    attempt.start(optimizer)
    for number, batch in enumerate(optimizer.batches(tokens(), until=18)):
        number += attempt.reports[0].batch if attempt.reports else 0
        before = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        if number < 10:
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


class Averaging(torch.optim.SGD):
    """Not torch's own: redone step by step."""


@pytest.mark.parametrize(
    ("die_at", "kind", "clips"),
    campaign.pairwise([(5,), (11,), (7, 4), (12, 1, 3)], ["by tensor", "step by step"], [False, True]),
    ids=str,
)
def test_used_gradients_that_are_read_come_back(kind: str, clips: bool, die_at: tuple[int, ...], tmp_path: Path) -> None:
    prove_exact(partial(reading, kind=kind, clips=clips), tmp_path / "run", die_at, checkpoint_every=1000)


@pytest.mark.parametrize("clears_in_place", [False, True])
def test_batches_without_a_step_count_behind_a_recovery_too(clears_in_place: bool, tmp_path: Path) -> None:
    """The gradients that came back are those of a step that was taken, and wait for none."""
    numbers: list[list[int]] = []
    for until in (4, 7, 8):
        seed()
        model = nn.Linear(3, 2)
        inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        with LoggedOptimizer(inner, tmp_path / "run", model, checkpoint_every=2) as optimizer:
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
