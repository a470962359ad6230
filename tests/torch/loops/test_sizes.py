"""What a run takes: checkpoints by default and as counted, files and disk space as its start line says, bounded curves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch._dynamo  # the first step imports it, which would take every life a second
from torch import nn

from tests.torch.lab import Attempt, in_child
from tests.torch.nets import logged, one_step, seed, small
from tranlogs.base.quantities import BYTES
from tranlogs.recovery.journal_facts import read_catalog
from tranlogs.training import scalars
from tranlogs_torch import LoggedOptimizer

MIB = 1 << 20


def steps_with_checkpoint(run: Path) -> list[int]:
    return sorted({int(path.name.split("-")[1]) for path in (run / "rank0/checkpoints").iterdir()})


def let_disk_be(free_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let checkpoints come as on a disk with so much space."""
    for module in ("tranlogs.journal.checkpoint_schedule", "tranlogs.training.write_forecast"):
        monkeypatch.setattr(f"{module}.free_bytes", lambda path: free_bytes)


def test_by_default_the_log_between_checkpoints_is_bounded_by_the_free_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_disk_be(768 * MIB, monkeypatch)
    model = nn.Linear(512, 512, bias=False)  # 1 MiB of gradients a step, 3 MiB of state with Adam's
    inner = torch.optim.AdamW(model.parameters())
    with LoggedOptimizer(inner, tmp_path / "run", model, log="gradients", durability="process", keep=99) as optimizer:
        report = optimizer.recover()
        assert str(report) == (
            "fresh run: step 0 (about 1.0 MiB of log a step; next checkpoint when it saves more than it costs, "
            "after at most 47 steps (47.1 MiB of log); at most about 4.9 GiB on disk without crashes, 768.0 MiB are free)"
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


@pytest.mark.parametrize(("history", "says"), [(5, "6.5 MiB"), (100, "21.5 MiB")])
def test_the_start_line_counts_what_comes_to_the_history_of_lbfgs(history: int, says: str, tmp_path: Path) -> None:
    """In each of its 20 iterations a step adds two tensors, as long as the history has room for so many."""
    model = nn.Linear(256, 512, bias=False)  # 0.5 MiB
    inner = torch.optim.LBFGS(model.parameters(), history_size=history)
    with LoggedOptimizer(inner, tmp_path / "run", model, log="gradients", durability="process") as optimizer:
        assert f"(about {says} of log a step; " in str(optimizer.recover())


def disk_bytes(run: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in run.rglob("*") if path.is_file())


def test_a_small_run_takes_what_its_start_line_says_and_gives_spare_files_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_disk_be(192 * MIB, monkeypatch)
    model = nn.Linear(256, 256, bias=False)  # 0.25 MiB
    run = tmp_path / "run"
    optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters()), run, model, log="gradients", durability="process")
    said = re.search(r"; at most about ([\d.]+) (MiB) on disk without crashes, 192.0 MiB are free\)$", str(optimizer.recover()))
    assert said is not None
    limit, taken = float(said[1]) * BYTES[said[2].lower()], []
    for number in optimizer.steps(until=220, stateless=True):
        model(torch.randn(1, 256)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 10 == 9:
            optimizer.training_run.journal.wait_checkpoint()
            taken.append(disk_bytes(run))
    assert max(taken) <= limit
    assert any(row.state == "retired" for row in read_catalog(run / "rank0").segments), "nothing is there to be given back"
    optimizer.close()
    rows = read_catalog(run / "rank0").segments
    assert {row.state for row in rows} == {"sealed"}
    assert {path.name for path in (run / "rank0" / "log").glob("*.seg")} == {row.file for row in rows}
    assert disk_bytes(run) < taken[-1] * 0.8


@pytest.mark.parametrize(("width", "asked", "first", "last"), [(8, None, 1, 1), (512, None, 3, 16), (8, 12 * MIB, 12, 12)])
def test_log_files_are_small_in_a_young_run_and_grow_with_it(
    tmp_path: Path, width: int, asked: int | None, first: int, last: int
) -> None:
    """The size that a setting asks for holds from the first one on."""
    model = torch.nn.Linear(width, width, bias=False)
    log, step_bytes = tmp_path / "run" / "rank0" / "log", width * width * 4
    options = {"segment_bytes": asked, "checkpoint_every": 1000, "durability": "process"}
    with LoggedOptimizer(torch.optim.SGD(model.parameters()), tmp_path / "run", model, log="gradients", **options) as optimizer:
        optimizer.recover()
        for step in optimizer.steps(150, stateless=True):
            model(torch.ones(1, width)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                in_use = min(log.glob("*.seg"))  # the next one may still be in the making
                assert in_use.stat().st_size == first * MIB
            if step == 20 and asked is None:
                logged = step * step_bytes
                assert sum(path.stat().st_size for path in log.glob("*.seg")) <= 1.5 * logged + 2 * first * MIB + MIB
            if step in (0, 20, 140):
                assert disk_bytes(log) <= (step + 1) * step_bytes + 4e6
    assert max(path.stat().st_size for path in log.glob("*.seg")) <= last * MIB
    assert sum(path.stat().st_size for path in log.glob("*.seg")) < 150 * step_bytes * 1.2 + 2 * MIB, (
        "what was not used is given back"
    )
    sizes = [row.size for row in read_catalog(tmp_path / "run" / "rank0").segments]
    assert max(sizes) <= last * MIB
    assert (max(sizes) > first * MIB) == (first != last)


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
        optimizer.log_scalars(turn=turn, norm=float("inf"), **({"rare": turn} if turn % 10 == 3 else {}))
    optimizer.close()
    return dict(optimizer.scalars)


def test_curve_is_bounded_and_the_same_after_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalars, "CURVE_POINTS_MAX", POINTS_MAX)
    options = {"checkpoint_every": 7}
    whole = train(Attempt(tmp_path / "whole", **options))
    for die_at in (15, 40):
        in_child(lambda die_at=die_at: train(Attempt(tmp_path / "run", die_at, **options)))
    assert train(Attempt(tmp_path / "run", **options)) == whole
    steps, values = whole["turn"]
    assert POINTS_MAX // 2 <= len(steps) <= POINTS_MAX
    assert values == [step - 1 for step in steps]
    assert steps[0] == 1
    assert steps[-POINTS_MAX // 2 :] == list(range(TURNS - POINTS_MAX // 2 + 1, TURNS + 1)), "the newest points in full"
    assert whole["rare"][1] == list(range(3, TURNS, 10)), "a short curve is whole"
