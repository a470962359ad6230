"""What the optimizer tracks, and buffers of the model, come back; what cannot be stored is refused or named."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.torch.lab import Attempt, differences, prove_exact
from tests.torch.nets import loss_of, seed, tokens
from tests.torch.small import Model, everything, logged, one_step, small
from tranlogs.base.errors import UnencodableState, UsageError
from tranlogs_torch import LoggedOptimizer


class Keeping:
    def __init__(self, content: Any) -> None:
        self.content = content

    def state_dict(self) -> Any:
        return self.content

    def load_state_dict(self, content: Any) -> None:
        self.content = content


def test_state_that_cannot_be_stored_is_refused_by_its_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with logged(small(), tmp_path / "run") as optimizer:
        with pytest.raises(UnencodableState, match=r"track\['ema'\]\['deep'\]\[1\] is a builtins.object"):
            optimizer.track(ema=Keeping({"deep": [1, object()]}))
        with pytest.raises(UsageError, match="a list has no state_dict"):
            optimizer.track(things=[1])
        optimizer.track(empty=Keeping({}))
        assert "track(empty=...): its state_dict is empty" in caplog.text


def test_tracked_after_recover_comes_back_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"

    def build() -> tuple[Model, LoggedOptimizer, Any, Keeping]:
        model = small()
        optimizer = logged(model, run, checkpoint_every=1000)
        return model, optimizer, lr_scheduler.ExponentialLR(optimizer, 0.5), Keeping(0)

    model, optimizer, scheduler, thing = build()
    with optimizer.track(scheduler=scheduler, thing=thing, other=Keeping(5)):
        optimizer.recover()
        for number in optimizer.steps(4, stateless=True):
            one_step(model, optimizer, number)
            scheduler.step()
            thing.content += 10
    model = small()
    with logged(model, run) as optimizer:
        optimizer.recover()
        scheduler, thing = lr_scheduler.ExponentialLR(optimizer, 0.5), Keeping(0)
        optimizer.track(scheduler=scheduler, thing=thing)
        assert thing.content == 40
        assert optimizer.param_groups[0]["lr"] == 0.01 * 0.5**4
        assert scheduler.last_epoch == 4
        one_step(model, optimizer)
        assert "state of 'other'" in caplog.text  # recorded, and nobody asked for it


def test_buffers_and_modes_come_back(tmp_path: Path) -> None:
    """BatchNorm's statistics, a buffer outside the state dict, and layers that were put into eval mode for good."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.late = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
            self.register_buffer("counter", torch.zeros((), dtype=torch.int64), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.counter += 1
            return self.late(self.norm(x))

    def script(attempt: Attempt) -> None:
        seed()
        model = Net()
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        attempt.start(optimizer)
        for number in optimizer.steps(9, stateless=True):
            if number == 3:
                model.norm.eval()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            attempt.tick()
        attempt.keep(model=model, modes=[m.training for m in model.modules()])
        optimizer.close()

    prove_exact(script, tmp_path / "run", (6,))


class Growing(nn.Module):
    """Registers a buffer in its first forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 11)
        self.embed = nn.Embedding(11, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        if not hasattr(self, "mean"):
            self.register_buffer("mean", torch.zeros(6))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.inner(x - self.mean)


@pytest.mark.parametrize("die_at", [(4,), (10,), (9, 3)], ids=str)
def test_buffer_that_comes_into_being_while_training_comes_back(die_at: tuple[int, ...], tmp_path: Path) -> None:
    """Before a checkpoint has it, and from one that does."""

    def script(attempt: Attempt) -> None:
        seed()
        model = Growing()
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), 0.05), model)
        attempt.start(optimizer)
        for batch in optimizer.batches(tokens(), until=14):
            loss_of(model, batch).backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
        attempt.keep(model=model)
        optimizer.close()

    prove_exact(script, tmp_path / "run", die_at)


def test_tracked_state_that_becomes_unstorable_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rest is logged on; it does not cost the run its protection."""
    keeping, model, run = Keeping({"count": 1}), small(), tmp_path / "run"
    with logged(model, run) as optimizer:
        optimizer.track(keeping=keeping)
        optimizer.recover()
        for number in optimizer.steps(40):
            one_step(model, optimizer, number)
            if number == 5:
                keeping.content = {"when": object()}
            if number > 5:
                time.sleep(0.1)  # logging is tried again a second after it stopped
        assert not optimizer.training_run.journal.is_suspended
        assert optimizer.watermarks["committed"] == 40
        assert any("'keeping' is no longer tracked" in note for note in optimizer.report.notes)
    right = everything(model, optimizer)
    assert "when the state can be stored again" in caplog.text
    model = small()
    with logged(model, run) as optimizer:
        optimizer.track(keeping=Keeping({"count": 2}))
        report = optimizer.recover()
        assert (report.step, differences(everything(model, optimizer), right)) == (40, [])
