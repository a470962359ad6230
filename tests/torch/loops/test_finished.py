"""What a start says of a run whose script came to its end before, and loops that are left by `break`."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer

UNSET = dict.fromkeys(("epochs", "batches"), "; the loop body did not run, so `x` is unset")  # it is read behind the loop
FINISHED = (
    "bit-exact): the run is finished; only a longer loop or a further one trains on (for another training, give another folder)"
)
EPOCHS = 6


@pytest.fixture(autouse=True, params=["1", "0"], ids=["recheck", "no recheck"])
def rechecks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", request.param)


class Training:
    """A script of 4 batches an epoch, whose starts print their reports. `broken`: it stops when the epoch has this number."""

    def __init__(self, run: Path, loop: str, *, broken: int | None = None, is_remembered: bool = False) -> None:
        self.run, self.loop, self.broken, self.is_remembered = run, loop, broken, is_remembered

    def start(self) -> tuple[str, int]:
        """Run the script; return the line of its report, and how many steps it took."""
        torch.manual_seed(1)
        model = nn.Linear(2, 1)
        loader = DataLoader(TensorDataset(torch.rand(8, 2)), batch_size=2)
        optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), self.run, model, segment_bytes=1 << 20)
        state: Any = optimizer.remember(bad=0) if self.is_remembered else type("State", (), {"bad": 0})
        line = str(optimizer.track(loader=loader).recover()).partition("\n")[0]
        before = optimizer.watermarks["step"]
        for epoch in self.epochs(optimizer, loader):
            for (x,) in epoch:
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            state.bad += 1
            if state.bad == self.broken:
                break
        if optimizer.watermarks["step"] > before:
            assert x.shape
        optimizer.close()
        return line, optimizer.watermarks["step"] - before

    def epochs(self, optimizer: LoggedOptimizer, loader: Any) -> Any:
        if self.loop == "epochs":
            return optimizer.epochs(EPOCHS)
        if self.loop == "batches":
            return [optimizer.batches(loader, until=4 * EPOCHS)]
        return [((torch.ones(2),) for _ in optimizer.steps(4 * EPOCHS, stateless=True))]


@pytest.mark.parametrize("loop", ["epochs", "batches", "steps"])
def test_a_finished_run_that_is_started_again_says_so(loop: str, tmp_path: Path) -> None:
    script = Training(tmp_path / "run", loop)
    line, steps = script.start()
    assert line.startswith("fresh run: step 0")
    assert steps == 24
    for _ in range(2):
        line, steps = script.start()
        assert line.endswith(FINISHED + UNSET.get(loop, "")), line
        place = "after 24 batches" if loop == "steps" else f"epoch {EPOCHS}, after 24 batches"
        assert line.startswith(f"recovered to step 24 ({place}, "), line
        assert steps == 0


@pytest.mark.parametrize("is_remembered", [False, True])
def test_an_early_stop_is_named_and_holds_if_what_decides_it_is_remembered(is_remembered: bool, tmp_path: Path) -> None:
    script = Training(tmp_path / "run", "epochs", broken=2, is_remembered=is_remembered)
    assert script.start()[1] == 8
    line, steps = script.start()
    assert line.endswith("): the loop was left in epoch 2 of 6, and trains on unless it is left again"), line
    assert re.match(r"recovered to step 8 \(", line)
    assert steps == (0 if is_remembered else 4), "the second epoch's own code runs again, and counts 1"


def short_epochs(attempt: Attempt, *, workers: int) -> None:
    """Each epoch is left by `break`, at its third batch of six."""
    seed()
    model, loader = Mixed(), tokens(24, num_workers=workers)
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    attempt.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(4, loader):
        attempt.tick()
        for i, batch in epoch.enumerate():
            attempt.saw(3 * epoch + i, batch)
            loss_of(model, batch).backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
            attempt.tick()
            if i == 2:
                break
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [0, 1])
def test_epochs_that_are_left_by_break_come_back_to_the_bit(workers: int, tmp_path: Path) -> None:
    is_exact = None if workers else True  # what workers draw is not known
    prove_exact(partial(short_epochs, workers=workers), tmp_path / "run", (15, 7, 6, 2), is_exact=is_exact)


def test_an_epoch_without_a_batch_is_refused_with_what_to_write(tmp_path: Path) -> None:
    model, loader = nn.Linear(2, 1), DataLoader(TensorDataset(torch.rand(4, 2)))
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model, segment_bytes=1 << 20)
    optimizer.track(loader=loader).recover()
    with pytest.raises(UsageError, match=r"epoch 1 gave no batch.*`for batch in epoch`, not `for batch in loader`"):
        for _ in optimizer.epochs(2):
            pass
    optimizer.close()
