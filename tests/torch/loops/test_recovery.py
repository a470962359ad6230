"""Recovery from a script: what it brings back, what it refuses before anything is touched, and what it says."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.torch import scripts
from tests.torch.lab import Attempt, contents, differences, flatten, in_child
from tests.torch.nets import Mixed, Model, everything, logged, loss_of, one_step, small, tokens
from tranlogs.base.errors import NotRecovered, StateMismatch, UsageError
from tranlogs_torch import LoggedOptimizer


def test_model_that_does_not_fit_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = Mixed()
    with logged(model, run) as optimizer:
        optimizer.recover()
        for _, batch in zip(optimizer.steps(3), tokens(), strict=False):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    threads = torch.get_num_threads()
    other = Mixed()
    other.hidden = nn.Linear(6, 6, bias=False)
    other.scale = nn.Parameter(torch.ones(3))
    other.frozen = nn.Parameter(torch.zeros(3, 2, dtype=torch.float64), requires_grad=False)
    other.register_buffer("extra", torch.zeros(2))
    before = everything(other, torch.optim.SGD(other.parameters()))
    random = torch.get_rng_state()
    with logged(other, run, torch.optim.SGD(other.parameters())) as optimizer, pytest.raises(StateMismatch) as caught:
        optimizer.recover()
    assert caught.value.differences == (
        "parameter hidden.bias: recorded, but absent from the script",
        "parameter scale: recorded as float32[], now float32[3]",
        "parameter frozen: recorded as float32[3, 2], now float64[3, 2]",
        "buffer extra: in the script, but not recorded",
        "optimizer 'main' was a torch.optim.adamw.AdamW and is now a torch.optim.sgd.SGD",
        "optimizer 'main': its parameter group 0 has different parameters (11 recorded, 10 now)",
    )
    assert differences(everything(other, torch.optim.SGD(other.parameters())), before) == []
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.get_num_threads() == threads


def test_another_set_of_optimizers_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = small()
    with logged(model, run) as optimizer:
        optimizer.add_optimizer(torch.optim.SGD(model[2].parameters()), "g")
        optimizer.recover()
    with logged(small(), run) as optimizer, pytest.raises(StateMismatch, match="optimizer 'g': only the run has it"):
        optimizer.recover()


def test_a_parameter_that_joined_later_and_is_not_built_again_is_named(tmp_path: Path) -> None:
    run, model, extra = tmp_path / "run", small(), nn.Parameter(torch.ones(2))
    with logged(model, run) as optimizer:
        optimizer.recover()
        for turn in optimizer.steps(4):
            if turn == 1:
                optimizer.add_param_group({"params": [extra]})
            one_step(model, optimizer)
    again = small()
    with logged(again, run) as optimizer, pytest.raises(StateMismatch, match="group that was added") as caught:
        optimizer.recover()
    assert "build them anew" in str(caught.value)  # the replay had come that far
    again = small()
    other = nn.Parameter(torch.zeros(2))
    with logged(again, run) as optimizer:
        optimizer.add_param_group({"params": [other]})
        assert optimizer.recover().step == 4
    assert differences(flatten(contents(again)), flatten(contents(model))) == []
    assert torch.equal(other, extra)


def test_training_without_recover_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = small()
    with logged(model, run) as optimizer:
        for number in optimizer.steps(3):  # a fresh run needs none
            one_step(model, optimizer, number)
    before = everything(model, torch.optim.SGD(model.parameters()))
    with logged(model, run) as optimizer:
        with pytest.raises(NotRecovered, match=r"already holds a run \(step 3 or later\)"):
            one_step(model, optimizer)
        with pytest.raises(NotRecovered):
            next(optimizer.steps(5))
        with pytest.raises(NotRecovered):
            next(optimizer.batches(tokens(), 5))
    assert differences(everything(model, torch.optim.SGD(model.parameters())), before) == []


def test_recover_after_the_first_step_is_refused_and_twice_is_once(tmp_path: Path) -> None:
    model = small()
    with logged(model, tmp_path / "run") as optimizer:
        assert optimizer.recover() == optimizer.recover()
        one_step(model, optimizer)
        with pytest.raises(UsageError, match="before the first step"):
            optimizer.recover()
    model = small()
    with logged(model, tmp_path / "run") as optimizer:
        report = optimizer.recover()
        assert report.step == 1
        assert optimizer.recover() == report


def test_hyper_parameters_of_the_run_hold_and_a_change_in_the_script_is_told(tmp_path: Path) -> None:
    """Compared with what the script gave at the beginning: a scheduler's changes are none of the script's."""

    def script(lr: float) -> tuple[float, tuple[str, ...]]:
        model = small()
        inner = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
        with logged(model, tmp_path / "run", inner) as optimizer:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            notes = optimizer.track(scheduler=scheduler).recover().notes
            for _ in optimizer.steps(optimizer.report.batch + 3, stateless=True):
                one_step(model, optimizer)
                scheduler.step()
            return optimizer.param_groups[0]["lr"], notes

    assert script(0.5) == (0.25, ())
    assert script(0.5) == (0.0625, ())
    for _ in range(2):  # and again, as long as the script says otherwise
        lr, notes = script(0.75)
        assert lr < 0.0625
        assert any("gives lr=0.75 to parameter group 0, and gave 0.5 when the run began" in note for note in notes)
    assert script(0.5)[1] == ()


def test_threads_count_as_they_are_when_training_begins(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    model = small()
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.Adam(model.parameters()), model)
    try:
        torch.set_num_threads(before + 1)  # after the optimizer was made
        optimizer.recover()
        optimizer.close()
        torch.set_num_threads(before)
        again = Attempt(tmp_path / "run").wrap(torch.optim.Adam(model.parameters()), model)
        assert any(f"to the run's {before + 1}" in note for note in again.recover().notes)
        assert again.training_run.environment["threads"] == before + 1  # what this process records is how it goes on
        again.close()
    finally:
        torch.set_num_threads(before)


def test_default_dtype_of_the_run_holds_in_redo(tmp_path: Path) -> None:
    """Optimizers make their `step` in it."""

    def script(attempt: Attempt) -> None:
        model = small().double()
        optimizer = attempt.wrap(torch.optim.NAdam(model.parameters(), lr=0.01), model)
        attempt.start(optimizer)
        for number in optimizer.steps(5):
            model(torch.full((3, 4), 0.1 * (number + 1), dtype=torch.float64)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        attempt.keep(optimizer=optimizer)
        optimizer.close()

    trained = Attempt(tmp_path / "run", checkpoint_every=1000)
    torch.set_default_dtype(torch.float64)
    try:
        script(trained)
    finally:
        torch.set_default_dtype(torch.float32)
    again = Attempt(tmp_path / "run")
    script(again)
    assert torch.get_default_dtype() is torch.float32
    assert differences(again.outcome(), trained.outcome()) == []


class Keeping:
    def __init__(self, content: Any) -> None:
        self.content = content

    def state_dict(self) -> Any:
        return self.content

    def load_state_dict(self, content: Any) -> None:
        self.content = content


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


def test_tracked_state_that_becomes_unstorable_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rest is logged on; it does not cost the run its protection."""
    keeping, model, run = Keeping({"count": 1}), small(), tmp_path / "run"
    with logged(model, run) as optimizer:
        optimizer.track(keeping=keeping)
        optimizer.recover()
        for number in optimizer.steps(60):
            one_step(model, optimizer, number)
            if number == 5:
                keeping.content = {"when": object()}
            if number > 5 and optimizer.training_run.journal.is_suspended:
                time.sleep(0.1)  # logging is tried again a second after it stopped
        assert not optimizer.training_run.journal.is_suspended
        assert optimizer.watermarks["committed"] == 60
        assert any("'keeping' is no longer tracked" in note for note in optimizer.report.notes)
    right = everything(model, optimizer)
    assert "when the state can be stored again" in caplog.text
    model = small()
    with logged(model, run) as optimizer:
        optimizer.track(keeping=Keeping({"count": 2}))
        report = optimizer.recover()
        assert (report.step, differences(everything(model, optimizer), right)) == (60, [])


@pytest.mark.parametrize("die_at", [9, None], ids=["killed", "finished"])
def test_a_run_whose_log_is_gone_is_neither_called_new_nor_finished(die_at: int | None, tmp_path: Path) -> None:
    run, n = tmp_path / "run", scripts.TURNS
    ended = in_child(lambda: scripts.batches(Attempt(run, die_at), checkpoint_every=100))
    assert ended == (0 if die_at is None else -signal.SIGKILL)
    for path in (run / "rank0" / "log").glob("*.seg"):
        if path.read_bytes()[:4] == b"TLR2":  # it holds records
            path.unlink()
    attempt = Attempt(run)
    scripts.batches(attempt, checkpoint_every=100)
    text = str(attempt.reports[0])
    assert "nothing was finished" not in text
    assert "the run is finished" not in text
    if die_at is None:
        assert f"step {n} had been committed, but the readable log ends at step 0: {n} steps have to be trained again" in text
    else:
        assert "recovered to step 0" in text
        assert "it cannot be read" in text
