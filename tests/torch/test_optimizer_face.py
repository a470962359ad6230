"""The wrapper is an optimizer like any other, and the run it keeps says clearly what it refuses."""

from __future__ import annotations

import copy
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.torch.lab import Attempt, contents, differences, flatten, in_child, prove_exact, uninterrupted
from tests.torch.loops import own_loop, validating
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tranlogs import failpoints
from tranlogs.errors import (
    NotRecovered,
    RecoveryError,
    RunInUse,
    StateMismatch,
    UnencodableState,
    UsageError,
)
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.naming import as_modules, clean_names, named_parameters

Model = nn.Module


def small() -> nn.Sequential:
    seed()
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def logged(model: Model, run: Path, inner: torch.optim.Optimizer | None = None, **options: Any) -> LoggedOptimizer:
    inner = torch.optim.AdamW(model.parameters(), lr=0.01) if inner is None else inner
    return LoggedOptimizer(inner, run, model, **({"durability": "process", "segment_bytes": 1 << 20} | options))


def one_step(model: Model, optimizer: Any, number: int = 0) -> None:
    optimizer.zero_grad()
    model(torch.full((3, 4), 0.1 * (number + 1))).square().sum().backward()
    optimizer.step()


def everything(model: Model, optimizer: Any) -> dict[str, Any]:
    return flatten({"model": contents(model), "optimizer": contents(optimizer)})


# An optimizer like any other


def test_it_is_an_optimizer_and_shares_all_with_the_inner(tmp_path: Path) -> None:
    model = small()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    with logged(model, tmp_path / "run", inner) as optimizer:
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert optimizer.param_groups is inner.param_groups
        assert optimizer.state is inner.state
        optimizer.recover()
        one_step(model, optimizer)
        assert optimizer.state_dict().keys() == inner.state_dict().keys()
        optimizer.param_groups[0]["lr"] = 0.5
        assert inner.param_groups[0]["lr"] == 0.5
        assert "AdamW" in repr(optimizer)
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        assert len(inner.param_groups) == 2


def test_stepping_the_inner_directly_is_logged_once(tmp_path: Path) -> None:
    model = small()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    with logged(model, tmp_path / "run", inner) as optimizer:
        scheduler = lr_scheduler.StepLR(optimizer, 2)
        optimizer.recover()
        for number in optimizer.steps(4):
            one_step(model, inner if number % 2 else optimizer, number)
            scheduler.step()  # it would warn if it had not seen the step
        assert optimizer.watermarks["committed"] == 4


@pytest.mark.parametrize("how", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copy_is_the_plain_optimizer(how: Callable[[Any], Any], tmp_path: Path) -> None:
    model = small()
    with logged(model, tmp_path / "run") as optimizer:
        optimizer.recover()
        one_step(model, optimizer)
        other = how(optimizer)
        assert type(other) is torch.optim.AdamW
        assert not other._optimizer_step_pre_hooks
        assert differences(flatten(other.state_dict()), flatten(optimizer.state_dict())) == []
        before = optimizer.watermarks["step"]
        other.step()
        assert optimizer.watermarks["step"] == before


def test_model_can_be_copied_and_saved_whole(tmp_path: Path) -> None:
    """The hook on the model stays behind, and whoever loads the file needs nothing of ours."""
    model = small()
    with logged(model, tmp_path / "run") as optimizer:
        optimizer.recover()
        for _ in range(2):  # a loop of the user's own
            one_step(model, optimizer)
        twin = copy.deepcopy(model)
        committed = optimizer.watermarks["committed"]
        one_step(twin, torch.optim.SGD(twin.parameters()))
        assert optimizer.watermarks["committed"] == committed
        file = io.BytesIO()
        torch.save(model, file)
        pickled = pickle.dumps(model)
    assert b"tranlogs" not in pickled
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    x = torch.ones(1, 4)
    assert torch.equal(loaded(x), model(x))
    assert torch.equal(pickle.loads(pickled)(x), model(x))


def test_closed_wrapper_is_a_plain_optimizer(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    model, plain = small(), small()
    optimizer = logged(model, tmp_path / "run")
    optimizer.recover()
    reference = torch.optim.AdamW(plain.parameters(), lr=0.01)
    for number in range(3):
        one_step(model, optimizer, number)
        one_step(plain, reference, number)
    optimizer.close()
    optimizer.close()
    assert not model._forward_pre_hooks
    assert not optimizer.inner._optimizer_step_pre_hooks
    one_step(model, optimizer, 3)
    one_step(plain, reference, 3)
    assert differences(everything(model, optimizer), everything(plain, reference)) == []
    with logged(model, tmp_path / "other", optimizer.inner):  # and can be logged again
        pass


def test_logging_what_is_logged_is_refused(tmp_path: Path) -> None:
    model = small()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    with logged(model, tmp_path / "run", inner) as optimizer:
        with pytest.raises(UsageError, match="logged already"):
            logged(model, tmp_path / "other", optimizer)
        with pytest.raises(UsageError, match="is logged in run"):
            logged(model, tmp_path / "other", inner)
        with pytest.raises(UsageError, match="has an optimizer 'main' already"):
            optimizer.also(torch.optim.SGD(model.parameters()), "main")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"log": "everything"}, "log='everything'"),
        ({"durability": "none"}, "durability='none'"),
        ({"segment_bytes": 10}, "segment_bytes=10"),
        ({"checkpoint_every": "often"}, "often"),
    ],
)
def test_wrong_setting_is_refused_in_words(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    model = small()
    with pytest.raises(UsageError, match=words):
        logged(model, tmp_path / "run", **options)
    with logged(model, tmp_path / "run") as optimizer:  # nothing is left behind
        assert optimizer.recover().step == 0


def test_optimizer_that_cannot_be_redone_is_refused(tmp_path: Path) -> None:
    model = small()
    with pytest.raises(UsageError, match="differentiable"):
        logged(model, tmp_path / "run", torch.optim.SGD(model.parameters(), lr=0.1, differentiable=True))
    with pytest.raises(UsageError, match="a list"):
        logged(model, tmp_path / "run", [])  # type: ignore[arg-type]
    group = {"params": list(model.parameters()), "why": object()}
    with pytest.raises(UnencodableState, match=r"optimizer 'main'.param_groups\[0\]\['why'\]"):
        logged(model, tmp_path / "run", torch.optim.SGD([group], lr=0.1))


# Hooks, closures, exceptions


def hooked(attempt: Attempt, *, when: str) -> None:
    """A user's hooks clip gradients before the step and weights after it; a global hook halves gradients."""
    model = small()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def clip(*_: Any) -> None:
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)

    def clamp(*_: Any) -> None:
        for p in model.parameters():
            p.data.clamp_(-0.4, 0.4)

    if when == "before":
        inner.register_step_pre_hook(clip)
        inner.register_step_post_hook(clamp)
    optimizer = attempt.wrap(inner, model)
    if when == "after":
        optimizer.register_step_pre_hook(clip)
        inner.register_step_post_hook(clamp)

    def halve(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)

    handle = register_optimizer_step_pre_hook(halve)
    try:
        attempt.start(optimizer)
        for number in optimizer.steps(8):
            if when == "late" and number == 3:  # right before a step of the inner
                inner.register_step_pre_hook(clip)
                inner.register_step_post_hook(clamp)
            optimizer.zero_grad()
            model(torch.full((3, 4), 0.1 * number)).square().sum().backward()
            (inner if when == "late" else optimizer).step()
            attempt.tick()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()
    finally:
        handle.remove()


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_hooks_do_is_in_the_log_and_not_done_twice(when: str, tmp_path: Path) -> None:
    prove_exact(partial(hooked, when=when), tmp_path / "run", (5,))


def test_hook_registered_right_before_a_step_is_seen(tmp_path: Path) -> None:
    script = partial(hooked, when="late")
    right, trained, again = uninterrupted(script), Attempt(tmp_path / "run", checkpoint_every=1000), Attempt(tmp_path / "run")
    script(trained)
    assert differences(trained.outcome(), right.outcome()) == []
    script(again)
    assert again.reports[0].exact is True
    assert differences(again.outcome(), right.outcome()) == []


class Sloppy(torch.optim.Optimizer):
    """Takes a closure and does not call it, moves the weights anyway, and keeps state under keys of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.state["rounds"] = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.state["rounds"] += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(group["lr"] * 0.01 * self.state["rounds"])


@pytest.mark.parametrize("with_closure", [True, False])
def test_strange_optimizer_comes_back_to_the_bit(with_closure: bool, tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        model = small()
        optimizer = attempt.wrap(Sloppy(model.parameters()), model)
        attempt.start(optimizer)
        for number in optimizer.steps(7):
            if number == 3:
                model[0].weight.data.mul_(0.5)
            model(torch.ones(2, 4)).sum().backward()
            if with_closure:
                optimizer.step(lambda: torch.zeros(()))
            else:
                optimizer.step()
            optimizer.zero_grad()
            attempt.tick()
        attempt.keep(model=model, rounds=optimizer.state["rounds"])
        optimizer.close()

    prove_exact(script, tmp_path / "run", (5,), checkpoint_every=1000)


def test_step_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = small()

    def refuse(*_: Any) -> None:
        raise ValueError("not today")

    optimizer = logged(model, run, checkpoint_every=1000)
    optimizer.recover()
    for number in optimizer.steps(6):
        if number == 2:
            handle = optimizer.inner.register_step_pre_hook(refuse)
            with pytest.raises(ValueError, match="not today"):
                one_step(model, optimizer, number)
            handle.remove()
            model[0].weight.data.mul_(0.5)
        one_step(model, optimizer, number)
    optimizer.close()
    trained = everything(model, optimizer)
    model = small()
    with logged(model, run) as optimizer:
        report = optimizer.recover()
        assert (report.step, report.exact) == (6, True)
        assert differences(everything(model, optimizer), trained) == []


def test_exception_in_the_body_loses_that_batch_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"
    model = small()

    def train() -> None:
        with logged(model, run) as optimizer:
            optimizer.recover()
            for number in optimizer.steps(6):
                one_step(model, optimizer, number)
                if number == 3:
                    raise KeyError("in the middle of a batch")

    with pytest.raises(KeyError):
        train()
    assert "the log ends at step 3" in caplog.text
    model = small()
    with logged(model, run) as optimizer:
        assert optimizer.recover().step == 3
        assert list(optimizer.steps(6)) == [3, 4, 5]


# GradScaler


def scaled(attempt: Attempt, *, fused: bool, unscale: bool, is_zeroed_first: bool = False) -> None:
    """float16-like training on the CPU: three steps are skipped for infinite gradients."""
    model = small()
    kind = partial(torch.optim.AdamW, fused=True) if fused else torch.optim.AdamW
    optimizer = attempt.wrap(kind(model.parameters(), lr=0.01), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
    scheduler = lr_scheduler.StepLR(optimizer, 3, 0.9)
    attempt.start(optimizer, scaler=scaler, scheduler=scheduler)
    for number in optimizer.steps(14):
        if is_zeroed_first:
            optimizer.zero_grad()
        loss = model(torch.full((3, 4), 0.1 * number)).square().sum()
        scaler.scale(loss * float("inf") if number in (4, 5, 9) else loss).backward()
        attempt.tick()
        if unscale:
            scaler.unscale_(optimizer)
            optimizer.clip_grad_norm_(0.1)
        scaler.step(optimizer)
        attempt.tick()
        scaler.update()
        if scaler.get_scale() > 1:
            scheduler.step()
        if not is_zeroed_first:
            optimizer.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, scaler=scaler)
    optimizer.close()


@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscaled and clipped"])
@pytest.mark.parametrize("fused", [False, True], ids=["", "fused"])
def test_grad_scaler_comes_back_to_the_bit(fused: bool, unscale: bool, tmp_path: Path) -> None:
    prove_exact(partial(scaled, fused=fused, unscale=unscale), tmp_path / "run", (14, 8, 3))


def test_skipped_step_is_not_lost(tmp_path: Path) -> None:
    """Also where old gradients still lie about at the boundary."""
    script = partial(scaled, fused=False, unscale=False, is_zeroed_first=True)
    run = tmp_path / "run"
    assert in_child(lambda: script(Attempt(run, 3 * 6 + 1))) == -signal.SIGKILL
    last = Attempt(run)
    script(last)
    assert (last.reports[0].step, last.reports[0].batch) == (4, 6)
    assert differences(last.outcome(), uninterrupted(script).outcome()) == []


# Clipping


def test_norm_is_that_of_torch(tmp_path: Path) -> None:
    models = [small(), small()]
    with logged(models[0], tmp_path / "run") as optimizer:
        optimizer.recover()
        for model in models:
            model(torch.ones(3, 4)).square().sum().backward()
        norm = optimizer.clip_grad_norm_(0.01)
        assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(models[1].parameters(), 0.01))
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            assert torch.equal(a.grad, b.grad)


def clipped_crosswise(attempt: Attempt) -> None:
    """Both are clipped before either steps; a clipped step is dropped; clipped gradients are changed once more."""
    first, second = small(), small()
    optimizer = attempt.wrap(torch.optim.AdamW(first.parameters(), lr=0.01), {"a": first, "b": second})
    inner = torch.optim.SGD(second.parameters(), lr=0.1, momentum=0.5)
    other = attempt.also(optimizer, inner, "b")
    if attempt.run is None:
        other.clip_grad_norm_ = lambda norm: torch.nn.utils.clip_grad_norm_(second.parameters(), norm)
    attempt.start(optimizer)
    for number in optimizer.steps(9):
        x = torch.full((3, 4), 0.1 * number)
        (first(x) + second(x)).square().sum().backward()
        optimizer.clip_grad_norm_(0.1)
        other.clip_grad_norm_(0.2)
        attempt.tick()
        if number % 4 == 2:  # not to be stepped at all
            optimizer.zero_grad()
            other.zero_grad()
            continue
        if number == 5:
            first[0].weight.grad.mul_(0.5)
        optimizer.step()
        other.step()
        optimizer.zero_grad()
        other.zero_grad()
        attempt.tick()
    attempt.keep(first=first, second=second, optimizer=optimizer, inner=inner)
    optimizer.close()


@pytest.mark.parametrize("handover", ["direct", "thread"])
def test_clipping_crosswise_comes_back_to_the_bit(handover: str, tmp_path: Path) -> None:
    prove_exact(clipped_crosswise, tmp_path / "run", (12, 2), checkpoint_every=1000, handover=handover)


# Recovery


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
        "parameter hidden.bias: recorded, but not there now",
        "parameter scale: recorded as float32[], now float32[3]",
        "parameter frozen: recorded as float32[3, 2], now float64[3, 2]",
        "buffer extra: there now, but not recorded",
        "optimizer 'main' was a torch.optim.adamw.AdamW, now it is a torch.optim.sgd.SGD",
        "optimizer 'main': its parameter group 0 holds other parameters (11 recorded, 10 now)",
    )
    assert differences(everything(other, torch.optim.SGD(other.parameters())), before) == []
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.get_num_threads() == threads


def test_another_set_of_optimizers_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = small()
    with logged(model, run) as optimizer:
        optimizer.also(torch.optim.SGD(model[2].parameters()), "g")
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
        with pytest.raises(NotRecovered, match="already holds 3 steps"):
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
        assert optimizer.recover() is report


def test_second_trainer_is_refused_and_told_who_has_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with logged(small(), run) as optimizer:
        optimizer.recover()

        def second() -> None:
            with pytest.raises(RunInUse, match=rf"process {os.getppid()} on host"):
                logged(small(), run)

        assert in_child(second) == 0
        with pytest.raises(RunInUse):
            logged(small(), run)
        one_step(small(), optimizer)


def test_older_step_starts_a_new_timeline(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = small()
    states = {}
    with logged(model, run, checkpoint_every=4, keep=100) as optimizer:
        optimizer.recover()
        for number in optimizer.steps(10):
            states[number] = everything(model, optimizer)
            one_step(model, optimizer, number)
    shutil.copytree(run, tmp_path / "copy")
    model = small()
    with logged(model, run, checkpoint_every=1000, keep=100) as optimizer:
        report = optimizer.recover(step=6)
        assert (report.step, report.batch, report.timeline, report.exact) == (6, 6, 2, True)
        assert differences(everything(model, optimizer), states[6]) == []
        for _ in optimizer.steps(9):
            one_step(model, optimizer, 77)
        other = everything(model, optimizer)
    model = small()
    with logged(model, run) as optimizer:
        report = optimizer.recover()
        assert (report.step, report.timeline, report.exact) == (9, 2, True)
        assert differences(everything(model, optimizer), other) == []
    model = small()
    with logged(model, run) as optimizer, pytest.raises(RecoveryError, match="step 10 is not covered"):
        optimizer.recover(step=10)
    model = small()
    with logged(model, tmp_path / "copy") as optimizer:
        assert optimizer.recover(step=0).step == 0
        assert differences(everything(model, optimizer), states[0]) == []


def test_note_wants_numbers_and_names_what_is_none(tmp_path: Path) -> None:
    with logged(small(), tmp_path / "run") as optimizer:
        optimizer.note(loss=torch.tensor(1.5), rate=float("nan"))
        for wrong in ("high", torch.zeros(2), None):
            with pytest.raises(UsageError, match=r"note\(grade=\.\.\.\): one number is wanted"):
                optimizer.note(grade=wrong)  # type: ignore[arg-type]


def test_hyper_parameters_of_the_run_hold_and_a_change_in_the_script_is_told(tmp_path: Path) -> None:
    """Compared with what the script gave at the beginning: a scheduler's changes are none of the script's."""

    def script(lr: float) -> tuple[float, tuple[str, ...]]:
        model = small()
        inner = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
        with logged(model, tmp_path / "run", inner) as optimizer:
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            notes = optimizer.track(scheduler=scheduler).recover().notes
            for _ in optimizer.steps(optimizer.report.batch + 3):
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


def test_scheduler_tracked_after_recovery_is_back_and_not_told_to_be_missing(tmp_path: Path) -> None:
    for early in (True, False):
        model = small()
        with logged(model, tmp_path / "run") as optimizer:
            if not early:
                optimizer.recover()
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            optimizer.track(scheduler=scheduler)
            if early:
                optimizer.recover()
            assert optimizer.report.exact is True
            assert optimizer.report.notes == ()
            assert scheduler.last_epoch == (0 if early else 5)
            for _ in optimizer.steps(5):
                one_step(model, optimizer)
                scheduler.step()


def test_scalars_have_neither_gaps_nor_doubles(tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        model = small()
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        attempt.start(optimizer)
        for number in optimizer.steps(11):
            one_step(model, optimizer, number)
            attempt.tick()
            optimizer.note(loss=torch.tensor(0.5 * number), rate=optimizer.param_groups[0]["lr"])
            attempt.tick()
        attempt.keep(scalars=getattr(optimizer, "scalars", None))
        optimizer.close()

    run = tmp_path / "run"
    for tick in (9, 5, 4):
        assert in_child(lambda tick=tick: script(Attempt(run, tick, checkpoint_every=3))) == -signal.SIGKILL
    last = Attempt(run)
    script(last)
    assert last.kept["scalars"]["loss"] == (list(range(1, 12)), [0.5 * n for n in range(11)])
    assert last.kept["scalars"]["rate"] == (list(range(1, 12)), [0.1] * 11)


def test_older_step_goes_on_as_the_run_itself_did(tmp_path: Path) -> None:
    """Same data, same random numbers: the new timeline repeats the old one."""
    run = tmp_path / "run"
    validating(Attempt(run, keep=100))
    again = Attempt(run, keep=100)
    again.recover_at = 11
    validating(again)
    assert again.reports[0].timeline == 2
    assert differences(again.outcome(), uninterrupted(validating).outcome()) == []


def test_threads_are_set_back_to_those_of_the_run(tmp_path: Path) -> None:
    run, before = tmp_path / "run", torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        validating(Attempt(run))
        torch.set_num_threads(before)
        again = Attempt(run)
        validating(again)
        assert torch.get_num_threads() == before + 1
        assert any("thread count set back" in note for note in again.reports[0].notes)
    finally:
        torch.set_num_threads(before)


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
        assert again.session.environment["threads"] == before + 1  # what this process records is how it goes on
        again.close()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam])
def test_default_dtype_of_the_run_holds_in_redo(kind: Any, tmp_path: Path) -> None:
    """Optimizers make their `step` in it."""

    def script(attempt: Attempt) -> None:
        model = small().double()
        optimizer = attempt.wrap(kind(model.parameters(), lr=0.01), model)
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


@pytest.mark.parametrize("handover", ["direct", "thread"])
def test_training_goes_on_while_the_disk_is_full(
    handover: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, takes logging up again from a fresh checkpoint, and what it logs then is sound."""
    run = tmp_path / "run"
    model, twin = small(), small()
    plain = torch.optim.AdamW(twin.parameters(), lr=0.01)
    with logged(model, run, checkpoint_every=1000, handover=handover) as optimizer:
        optimizer.recover()
        journal = optimizer.session.journal
        for number in optimizer.steps(20):
            if number == 5:
                monkeypatch.setattr(failpoints, "_rules", failpoints._parse("wal.put=enospc"))
            if number == 12:
                journal.wait_synced()  # all that was queued has been tried
                monkeypatch.setattr(failpoints, "_rules", {})
                monkeypatch.setattr(journal.clock, "monotonic", lambda: 1e9)
            for each, stepped in ((model, optimizer), (twin, plain)):
                each(torch.full((3, 4), 0.1 * (number + 1))).square().sum().backward()
                if stepped is optimizer:
                    optimizer.clip_grad_norm_(0.5)
                else:
                    torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
                stepped.step()
                stepped.zero_grad()
                if number % 3 == 0:
                    each[0].weight.data.clamp_(-0.3, 0.3)
            assert optimizer.watermarks["step"] == number + 1
    assert caplog.text.count("logging is suspended") == 1
    assert differences(everything(model, optimizer.inner), everything(twin, plain)) == []
    fresh = small()
    with logged(fresh, run) as optimizer:
        report = optimizer.recover()
        assert (report.step, report.exact) == (20, True)
        assert report.checkpoint_step is not None
        assert report.checkpoint_step >= 12
        assert differences(everything(fresh, optimizer.inner), everything(twin, plain)) == []


# What is tracked


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
        for number in optimizer.steps(4):
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
        for number in optimizer.steps(9):
            if number == 3:
                model.norm.eval()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            attempt.tick()
        attempt.keep(model=model, modes=[m.training for m in model.modules()])
        optimizer.close()

    prove_exact(script, tmp_path / "run", (6,))


# Loops of the user's own


def test_own_loop_loses_the_last_batch_at_most(tmp_path: Path) -> None:
    last = prove_exact(own_loop, tmp_path / "run", (9,), is_exact=None)  # dies in the fifth backward
    assert last.reports[0].step == 4


def test_own_loop_around_a_compiled_model_comes_back_to_the_bit(tmp_path: Path) -> None:
    """A graph of it in one piece stays in one piece."""
    torch._dynamo.reset()
    last = prove_exact(partial(own_loop, is_compiled=True), tmp_path / "run", (9,), is_exact=None)
    assert last.reports[0].step >= 3


def test_own_loop_ends_with_all_its_steps(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = small()
    with logged(model, run) as optimizer:
        optimizer.recover()
        for number in range(5):
            one_step(model, optimizer, number)
    with logged(small(), run) as optimizer:
        assert optimizer.recover().step == 5


@pytest.mark.parametrize(("ending", "step"), [("", 5), ("raise KeyError", 4)])
def test_exit_without_close_loses_no_finished_batch(ending: str, step: int, tmp_path: Path) -> None:
    script = f"""
        import sys
        import torch
        from tranlogs_torch import LoggedOptimizer
        model = torch.nn.Linear(4, 2)
        optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), {str(tmp_path / "run")!r}, model)
        optimizer.recover()
        for number in range(5):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        {ending}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == (1 if ending else 0), done.stderr
    model = nn.Linear(4, 2)
    with logged(model, tmp_path / "run", torch.optim.SGD(model.parameters(), lr=0.1)) as optimizer:
        assert optimizer.recover().step == step


# Names


def test_names_are_those_of_the_bare_module() -> None:
    model = small()
    names = list(named_parameters(as_modules(model)))
    assert list(named_parameters(as_modules(torch.compile(model)))) == names
    assert list(named_parameters(as_modules(torch.optim.swa_utils.AveragedModel(model)))) == names


def test_module_called_module_loses_no_parameter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.module = nn.Linear(2, 2), nn.ModuleDict({"fc": nn.Linear(2, 2)})

    names = list(named_parameters(as_modules(Net())))
    assert names == ["fc.weight", "fc.bias", "module.fc.weight", "module.fc.bias"]
    assert clean_names(["module.a", "module.module.a"]) == {"module.a": "a", "module.module.a": "module.a"}


def test_compiled_model_takes_up_the_run_of_the_plain_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model = small()
    with logged(model, run) as optimizer:
        optimizer.recover()
        for number in optimizer.steps(3):
            one_step(model, optimizer, number)
    other = small()
    with logged(torch.compile(other, backend="eager"), run, torch.optim.AdamW(other.parameters(), lr=0.01)) as optimizer:
        assert optimizer.recover().exact is True
        assert differences(everything(other, optimizer.inner), everything(model, optimizer.inner)) == []


def test_parameters_outside_the_model_are_logged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    values = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(2))]
    for expected in (0, 4):
        free = [nn.Parameter(p.detach().clone()) for p in (torch.zeros(3), torch.ones(2))]
        with LoggedOptimizer(torch.optim.SGD(free, lr=0.1), run, durability="process") as optimizer:
            assert optimizer.recover().step == expected
            for _ in optimizer.steps(4):
                (free[0].sum() + free[1].square().sum()).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert torch.equal(free[0], torch.full((3,), -0.4).clamp(min=-0.4))
        values = free
    assert values[1].item if values[1].dim() == 0 else values[1].shape == (2,)
