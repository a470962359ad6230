"""The id of a run, and what a script does with it so that an experiment tracker has one run without gaps or duplicates."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.cli.conftest import Cli, cli
from tests.torch.lab import in_child
from tranlogs_torch import LoggedOptimizer

__all__ = ["cli"]

LAST = 20


class Tracker:
    """An experiment tracker as simple as one can be: a file for each id, a line for each point, and some points in a buffer."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path, self._buffer = folder / f"{name}.jsonl", list[str]()
        folder.mkdir(exist_ok=True)

    def points(self) -> list[tuple[int, float]]:
        """All that was written, in order."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def log(self, step: int, value: float, *, lag: int) -> None:
        """Write a point, up to `lag` points later."""
        self._buffer.append(json.dumps([step, value]) + "\n")
        while len(self._buffer) > lag:
            with open(self.path, "a") as file:
                file.write(self._buffer.pop(0))


def script(folder: Path, die_at: int | None, *, lag: int) -> None:
    """A training script as docs/operations.md writes it."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    options = {"durability": "process", "segment_bytes": 1 << 20, "checkpoint_every": 6}
    with LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), folder / "run", model, **options) as optimizer:
        report = optimizer.recover()
        tracker = Tracker(folder / "tracker", optimizer.run_id)
        logged = max((step for step, _ in tracker.points()), default=0)
        for step, value in zip(*optimizer.scalars.get("loss", ([], [])), strict=True):
            if step > logged:
                tracker.log(step, value, lag=0)
        logged = max(logged, report.step)
        for number in optimizer.steps(LAST):
            loss = model(torch.full((2, 3), 1.0 + number)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step = number + 1
            optimizer.log_scalars(loss=loss.item())
            if step > logged:
                tracker.log(step, loss.item(), lag=lag if step < LAST else 0)
            if step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.crash
@pytest.mark.parametrize("lag", [0, 3])
def test_one_tracked_run_without_gaps_or_duplicates_after_three_kills(tmp_path: Path, cli: Cli, lag: int) -> None:
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
    for at in (5, 6, 13):
        assert in_child(lambda at=at: script(tmp_path / "killed", at, lag=lag)) == -signal.SIGKILL
    for name in ("killed", "whole"):
        assert in_child(lambda name=name: script(tmp_path / name, None, lag=lag)) == 0
    (killed,), (whole,) = (sorted((tmp_path / name / "tracker").iterdir()) for name in ("killed", "whole"))
    assert killed.stem != whole.stem
    assert cli("status", tmp_path / "killed" / "run", "--json").json["ranks"][0]["run_id"] == killed.stem
    points = [json.loads(line) for line in killed.read_text().splitlines()]
    assert [step for step, _ in points] == list(range(1, LAST + 1))
    assert points == [json.loads(line) for line in whole.read_text().splitlines()]


def test_the_id_is_known_at_once_and_stays_on_another_timeline(tmp_path: Path) -> None:
    seen = []
    for step in (None, None, 2):
        parameter = nn.Parameter(torch.ones(2))
        with LoggedOptimizer(torch.optim.SGD([parameter], lr=0.1), tmp_path / "run", segment_bytes=1 << 20) as optimizer:
            before = optimizer.run_id
            report = optimizer.recover(step)
            for _ in optimizer.steps(4):
                parameter.grad = torch.ones(2)
                optimizer.step()
            seen.append((before, optimizer.run_id, report.timeline))
        assert optimizer.run_id == before, "after close(), too"
    assert {one for before, after, _ in seen for one in (before, after)} == {seen[0][0]}
    assert [timeline for *_, timeline in seen] == [1, 1, 2]
