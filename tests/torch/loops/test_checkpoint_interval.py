"""When checkpoints of a PyTorch run are taken: by default, and counted in training steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.small import logged, one_step, small
from tranlogs.retention import CheckpointFacts
from tranlogs_torch import LoggedOptimizer

MIB = 1 << 20


def steps_with_checkpoint(run: Path) -> list[int]:
    return sorted({int(path.name.split("-")[1]) for path in (run / "rank0/checkpoints").iterdir()})


def test_by_default_the_log_between_checkpoints_is_bounded_by_the_size_of_a_checkpoint(tmp_path: Path) -> None:
    model = nn.Linear(512, 512, bias=False)  # 1 MiB of gradients a step, 3 MiB of state with Adam's
    inner = torch.optim.AdamW(model.parameters())
    with LoggedOptimizer(inner, tmp_path / "run", model, durability="process", keep=99) as optimizer:
        report = optimizer.recover()
        assert str(report) == (
            "fresh run: step 0 (about 1.0 MiB of log a step; next checkpoint after about 47 steps (47.1 MiB of log); "
            "at most about 4.9 GiB on disk without crashes)"
        )
        for _ in optimizer.steps(until=100):
            model(torch.randn(1, 512)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    first, second, third = steps_with_checkpoint(tmp_path / "run")
    assert first == 0
    assert 40 <= second <= 50
    assert 80 <= third <= 100


def test_steps_of_two_optimizers_in_one_unit_count_once(tmp_path: Path) -> None:
    generator, critic = small(), small()
    run = tmp_path / "run"
    inner = torch.optim.SGD(generator.parameters(), 0.1)
    with logged(nn.ModuleDict({"g": generator, "c": critic}), run, inner, checkpoint_every=4, keep=99) as optimizer:
        other = optimizer.add_optimizer(torch.optim.SGD(critic.parameters(), 0.1), "critic")
        optimizer.recover()
        for _ in optimizer.steps(until=9):
            for _ in range(3):
                one_step(critic, other)
            one_step(generator, optimizer)
            optimizer.training_run.journal.wait_checkpoint()
    assert steps_with_checkpoint(run) == [0, 16, 32]


def test_a_policy_of_one_s_own_sees_units_and_sizes(tmp_path: Path) -> None:
    seen: list[CheckpointFacts] = []

    class Mine:
        def is_due(self, facts: CheckpointFacts) -> bool:
            seen.append(facts)
            return False

    model = nn.Linear(128, 128)  # large beside what else a checkpoint holds
    with logged(model, tmp_path / "run", checkpoint_every=Mine()) as optimizer:
        optimizer.recover()
        for _ in optimizer.steps(until=3):
            model(torch.ones(3, 128)).square().sum().backward()
            optimizer.step()
    assert [facts.steps for facts in seen] == [1, 2, 3]
    weights = sum(p.nbytes for p in model.parameters())
    assert all(3 * weights <= facts.state_bytes < 4 * weights for facts in seen)
    assert all(0 < facts.free_bytes < 1 << 62 for facts in seen)


@pytest.mark.parametrize(("history", "says"), [(5, "6.5 MiB"), (100, "21.5 MiB")])
def test_the_start_line_counts_what_comes_to_the_history_of_lbfgs(history: int, says: str, tmp_path: Path) -> None:
    """In each of its 20 iterations a step adds two tensors, as long as the history has room for so many."""
    model = nn.Linear(256, 512, bias=False)  # 0.5 MiB
    inner = torch.optim.LBFGS(model.parameters(), history_size=history)
    with LoggedOptimizer(inner, tmp_path / "run", model, durability="process") as optimizer:
        assert f"(about {says} of log a step; " in str(optimizer.recover())


def test_lbfgs_logs_what_comes_to_its_history(tmp_path: Path) -> None:
    """Not all of it in each step: a log file holds each tensor once."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(64, 128, bias=False), torch.randn(99, 64), torch.randn(99, 128)  # 32 KiB
    inner = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=20)
    run = tmp_path / "run"
    with LoggedOptimizer(inner, run, model, durability="process", checkpoint_every=1000, segment_bytes=64 * MIB) as optimizer:
        optimizer.recover()

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        for _ in optimizer.steps(until=20):
            optimizer.step(closure)
        history = inner.state_dict()["state"][0]["old_dirs"]
        assert len(history) == 20
    (path,) = (run / "rank0" / "log").glob("*.seg")
    assert path.stat().st_size < 20 * (3 + 2 * 4) * 32 * 1024 + MIB


class Table:
    """2 MiB of tracked state that stay as they are."""

    def __init__(self) -> None:
        self.rows = np.arange(2 * MIB // 8)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]


def test_the_size_of_a_checkpoint_counts_all_that_it_holds(tmp_path: Path) -> None:
    """A log of 6 MiB would be 16 times the size of the model and its optimizer; it is three times that of a checkpoint."""
    model = nn.Linear(64, 64)
    inner = torch.optim.AdamW(model.parameters())
    with LoggedOptimizer(inner, tmp_path / "run", model, durability="process", keep=99) as optimizer:
        optimizer.track(table=Table()).recover()
        for _ in optimizer.steps(until=300):
            model(torch.randn(8, 64)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        wal = optimizer.training_run.journal.log.wal
        assert wal is not None
        assert wal.bytes_written > 5 * MIB
    assert steps_with_checkpoint(tmp_path / "run") == [0]
