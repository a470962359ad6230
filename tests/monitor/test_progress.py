"""What the dashboard shows of the training itself: batch, epoch and scalars, as the boundaries hold them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.monitor.test_templates import Elements
from tests.monitor.test_watch import watching
from tranlogs_monitor.dashboard.pages.board import JournalView
from tranlogs_monitor.dashboard.pages.curves import curves
from tranlogs_monitor.dashboard.pages.page import journal_page, overview
from tranlogs_monitor.watching import training_progress
from tranlogs_monitor.watching.training_progress import ProgressReader, find_position
from tranlogs_torch import LoggedOptimizer

BATCHES = 5  # of an epoch


def train(run: Path, until: int, step: int | None = None) -> dict[str, Any]:
    """Train on with a loader; return the curves of the script."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    loader = DataLoader(TensorDataset(torch.randn(10, 3)), batch_size=2, shuffle=True)
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), run, model, segment_bytes=1 << 20, keep=100)
    with optimizer:
        optimizer.track(loader=loader)
        optimizer.recover(step)
        for (batch,) in optimizer.batches(loader, until=until):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.log_scalars(loss=loss.item(), accuracy=float("nan"))
        return dict(optimizer.scalars)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    run = tmp_path_factory.mktemp("progress") / "run"
    return run, train(run, 12)


def test_loss_epoch_and_batch_are_on_both_pages(trained: tuple[Path, dict[str, Any]]) -> None:
    run, scalars = trained
    watch = watching(run / "rank0")
    seen = watch.evaluate()
    watch.close()
    assert seen.progress is not None
    assert (seen.progress.step, seen.progress.batch, seen.progress.epoch) == (12, 12, 2)
    view = JournalView("run", seen)
    page = Elements(journal_page(view, now=seen.at, interval_seconds=10, has_others=False))
    assert "Step 12, batch 12, epoch 3." in page.text
    assert ("data-scalar", "loss") in page.attributes
    loss = f"{scalars['loss'][1][-1]:.5g}"
    assert loss in page.text
    rows = Elements(overview([view, JournalView("other", seen)], now=seen.at, interval_seconds=10))
    assert rows.text.count(f"loss {loss}") == rows.text.count("epoch 3") == 2
    numbers = json.loads(json.dumps(curves(view), allow_nan=False))["scalars"]
    assert list(numbers["columns"]) == ["loss", "accuracy"]
    assert numbers["steps"] == scalars["loss"][0] == list(range(1, 13))
    assert numbers["columns"] == {"loss": scalars["loss"][1], "accuracy": [None] * 12}


def test_only_new_boundaries_are_read_and_another_timeline_begins_anew(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(trained[0], tmp_path / "run"))
    reader, read = ProgressReader(run / "rank0"), []
    scalars = training_progress.SegmentReader.scalars
    monkeypatch.setattr(
        training_progress.SegmentReader, "scalars", lambda self, at: read.append(at.head.step) or scalars(self, at)
    )
    assert reader.read() is reader.read()
    assert read == list(range(1, 13))
    train(run, 14)
    read.clear()
    found = reader.read()
    assert found is not None
    assert (read, found.step, found.epoch) == ([13, 14], 14, 2)
    assert found.curves["loss"][0] == tuple(range(1, 15))
    known = train(run, 8, step=7)
    found = reader.read()
    assert found is not None
    assert (found.step, found.batch) == (8, 8)
    assert found.curves["loss"] == (tuple(range(1, 9)), tuple(known["loss"][1]))


def test_a_long_curve_is_thinned_and_keeps_its_end(
    trained: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_progress, "_POINTS_MAX", 5)
    found = ProgressReader(trained[0] / "rank0").read()
    assert found is not None
    assert found.curves["loss"][0] == (1, 3, 5, 7, 9, 11, 12)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"position": {"total": 9, "epoch": 2}}, (9, 2)),
        ({"data": {"loader": {"taken": 4, "epoch": 1}}, "count": 8}, (4, 1)),
        ({"data": {}, "count": 8}, (8, None)),
        ({"lr": 0.1}, (None, None)),
        ([], (None, None)),
    ],
)
def test_positions_of_both_frameworks(body: Any, expected: tuple[int | None, int | None]) -> None:
    assert find_position(body) == expected
