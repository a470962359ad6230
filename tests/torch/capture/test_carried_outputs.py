"""A model that is given its own outputs of an earlier batch: recovered if they are tracked, else named and not called exact."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.torch.lab import Attempt, in_child, prove_exact
from tests.torch.nets import seed
from tranlogs_torch import LoggedOptimizer

BATCHES = 6


class Cell(nn.Module):
    """A recurrent cell; it returns an output, and the state for the next batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(2, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, state: dict[str, Any] | None = None) -> tuple[torch.Tensor, dict[str, Any]]:
        hidden = self.cell(x, None if state is None else state["hidden"])
        return self.head(hidden), {"hidden": hidden}


class Memory:
    """Keeps the hidden state, and stores it in one of several forms."""

    def __init__(self, store: Callable[[torch.Tensor], Any]) -> None:
        self.store, self.hidden = store, torch.zeros(4, 3)

    def state_dict(self) -> dict[str, Any]:
        return {"hidden": self.store(self.hidden.clone())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.hidden = torch.as_tensor(state["hidden"]).clone()


def recurrent(attempt: Attempt, *, store: Callable[[torch.Tensor], Any] | None) -> None:
    seed()
    loader = DataLoader(torch.randn(4 * BATCHES, 2), batch_size=4)  # type: ignore[arg-type]  # a tensor has rows
    model, memory = Cell(), Memory(store or torch.clone)
    attempt.model = optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)  # type: ignore[attr-defined]
    attempt.start(optimizer, loader=loader, **({} if store is None else {"memory": memory}))
    for x in optimizer.batches(loader, until=2 * BATCHES):
        optimizer.zero_grad()
        state = {"hidden": memory.hidden.detach()}
        y, after = model(x, state)
        memory.hidden = after["hidden"].detach()
        y.square().mean().backward()
        attempt.tick()
        optimizer.step()
    attempt.keep(model=model, memory=memory)
    optimizer.close()


@pytest.mark.parametrize("tick", [5, 2 * BATCHES])
def test_a_hidden_state_that_is_not_tracked_is_named(tick: int, tmp_path: Path) -> None:
    """What starts over is named at run time, and the proof finds the difference, also where one batch is left."""
    script = partial(recurrent, store=None)
    assert in_child(lambda: script(Attempt(tmp_path / "run", tick, recheck=True))) < 0
    last = Attempt(tmp_path / "run", recheck=True)
    script(last)
    report = last.model.report  # type: ignore[attr-defined]
    assert report.exact is False
    assert any("memory (Memory) starts over" in note and "hidden" in note for note in report.notes), report.notes
    assert any("was computed again" in note and "differs from the record" in note for note in report.notes), report.notes


@pytest.mark.parametrize("store", [torch.clone, torch.Tensor.numpy, torch.Tensor.tolist])
def test_a_hidden_state_that_is_tracked_comes_back(store: Callable[[torch.Tensor], Any], tmp_path: Path) -> None:
    last = prove_exact(partial(recurrent, store=store), tmp_path / "run", (3, 2 * BATCHES - 3))
    report = last.model.report  # type: ignore[attr-defined]
    assert report.exact is True, report.notes


class Tied(nn.Module):
    """Returns a weight of its own, and a view of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * weight).sum(), x.view(-1), self.weight


def test_what_is_no_state_of_the_loop_is_not_named(tmp_path: Path) -> None:
    """Views of data that the next batch is a view of as well, weights, and outputs that are used within one batch."""
    model, data = Tied(), torch.ones(8, 2)
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model, durability="process")
    optimizer.recover()
    weight: torch.Tensor = model.weight
    for i in optimizer.batches(DataLoader(list(range(8)), batch_size=None)):  # type: ignore[arg-type]
        _, seen, weight = model(data[i], weight)
        loss, _, _ = model(model(seen, weight)[0].expand(2), weight)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i == 7:
            break
    optimizer.close()
    assert not optimizer.report.notes
