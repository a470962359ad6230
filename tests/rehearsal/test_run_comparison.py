"""Comparison of two runs that were trained in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tranlogs.rehearsal.comparison.differences import Difference, find_differences
from tranlogs.rehearsal.comparison.run_comparison import compare_runs, copy_start, find_unsteady
from tranlogs_torch import LoggedOptimizer

STEPS = 6


@dataclass
class Counter:
    """Tracked state."""

    value: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


Change = Callable[[int, torch.Tensor, Any, Counter], None]


def train(arm: Path, change: Change = lambda step, data, optimizer, counter: None, seed: int = 0) -> None:
    """Train a run of some steps; `change` is called within each step."""
    torch.manual_seed(seed)
    model, counter = nn.Linear(3, 1), Counter()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"durability": "process", "segment_bytes": 1 << 20, "keep": 100, "checkpoint_every": STEPS}
    with LoggedOptimizer(inner, arm / "run", model, **options) as optimizer:
        optimizer.track(counter=counter).recover()
        for step in optimizer.steps(STEPS, stateless=True):
            data = torch.full((2, 3), float(step))
            change(step + 1, data, optimizer, counter)
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.training_run.journal.wait_checkpoint()


def change_data(step: int, data: torch.Tensor, optimizer: Any, counter: Counter) -> None:
    if step == 3:
        data += 1


def change_rate(step: int, data: torch.Tensor, optimizer: Any, counter: Counter) -> None:
    optimizer.param_groups[0]["lr"] = 0.1 if step < 4 else 0.05


def change_counter(step: int, data: torch.Tensor, optimizer: Any, counter: Counter) -> None:
    counter.value = step if step < 5 else 0


def change_random_state(step: int, data: torch.Tensor, optimizer: Any, counter: Counter) -> None:
    if step == 2:
        torch.rand(1)


@pytest.mark.parametrize(
    ("change", "kind", "what", "step"),
    [
        (change_data, "gradients", "weight", 3),
        (change_rate, "hyper-parameters", "hyper[0].lr", 4),
        (change_counter, "tracked state", "tracked.counter.value", 1),
        (change_random_state, "random state", "rng.torch", 2),
    ],
)
def test_first_difference_is_named_with_its_step(change: Change, kind: str, what: str, step: int, tmp_path: Path) -> None:
    train(tmp_path / "twin")
    train(tmp_path / "other", change)
    assert compare_runs(tmp_path / "twin", tmp_path / "twin") == []
    first = compare_runs(tmp_path / "twin", tmp_path / "other")[0]
    assert (first.kind, first.what.rstrip("0123456789[]"), first.step) == (kind, what, step)


def test_what_differs_without_a_kill_can_be_left_out(tmp_path: Path) -> None:
    train(tmp_path / "twin")
    train(tmp_path / "control", change_counter)
    ignored = find_unsteady(tmp_path / "twin", tmp_path / "control")
    assert ignored == {("tracked state", "tracked.counter.value")}
    assert compare_runs(tmp_path / "twin", tmp_path / "control", ignored) == []


def test_last_state_is_compared_tensor_by_tensor(tmp_path: Path) -> None:
    train(tmp_path / "twin")
    train(tmp_path / "other", change_data)
    last = compare_runs(tmp_path / "twin", tmp_path / "other")[-1]
    assert (last.kind, last.what, last.step) == ("weights", "weight", STEPS)
    assert "apart" in last.detail


def test_copy_of_the_start_begins_with_the_same_weights(tmp_path: Path) -> None:
    train(tmp_path / "twin")
    assert copy_start(tmp_path / "twin", tmp_path / "copy")
    train(tmp_path / "copy", seed=7)
    assert compare_runs(tmp_path / "twin", tmp_path / "copy") == []


def test_differences_of_nested_values_are_found_by_their_paths() -> None:
    a = {"x": [1, {"y": 2.0}], "z": b"1", "same": float("nan")}
    b = {"x": [1, {"y": 3.0}], "w": None, "same": float("nan")}
    assert list(find_differences(a, b)) == [
        ("x[1].y", "3.0 instead of 2.0"),
        ("z", "missing"),
        ("w", "not there without a kill"),
    ]
    assert str(Difference("weights", "w", "up to 1 apart", 3)) == "weights at step 3: w (up to 1 apart)"
