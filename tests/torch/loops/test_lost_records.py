"""Log files that are gone: the report does not call the run new, or finished."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.torch.lab import Attempt, in_child
from tests.torch.loops.recheck_scripts import TURNS, _begin, _step

pytestmark = pytest.mark.crash


def train(attempt: Attempt, checkpoint_every: int) -> None:
    model, optimizer, loader = _begin(attempt, checkpoint_every=checkpoint_every)
    attempt.start(optimizer)
    for batch in optimizer.batches(loader, until=TURNS):
        _step(attempt, model, optimizer, batch)
    attempt.keep(model=model)
    optimizer.close()


def used_segments(run: Path) -> list[Path]:
    """The log files that hold records, the oldest first."""
    return sorted(path for path in (run / "rank0" / "log").glob("*.seg") if path.read_bytes()[:4] == b"TLR2")


def test_a_run_whose_log_is_gone_is_not_called_new(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert in_child(lambda: train(Attempt(run, 9), 100)) == -signal.SIGKILL
    for path in used_segments(run):
        path.unlink()
    attempt = Attempt(run)
    train(attempt, 100)
    text = str(attempt.reports[0])
    assert "nothing was finished" not in text
    assert "recovered to step 0" in text
    assert "it cannot be read" in text


def test_a_finished_run_whose_log_is_gone_is_not_called_finished(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(Attempt(run), 100)
    for path in used_segments(run):
        path.unlink()
    attempt = Attempt(run)
    train(attempt, 100)
    text = str(attempt.reports[0])
    assert (
        f"step {TURNS} had been committed, but the readable log ends at step 0: {TURNS} steps have to be trained again" in text
    )
    assert "the run is finished" not in text
