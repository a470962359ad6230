"""The wrapper is an optimizer like any other."""

from __future__ import annotations

import copy
import io
import pickle
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.support import campaign
from tests.torch.lab import Attempt, differences, flatten, in_child, prove_exact, uninterrupted
from tests.torch.small import everything, logged, one_step, small
from tranlogs.base.errors import UnencodableState, UsageError
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.state.naming import as_modules, clean_names, named_parameters

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
        with pytest.raises(UsageError, match="already logged"):
            logged(model, tmp_path / "other", optimizer)
        with pytest.raises(UsageError, match="is already logged in run"):
            logged(model, tmp_path / "other", inner)
        with pytest.raises(UsageError, match="already has an optimizer 'main'"):
            optimizer.add_optimizer(torch.optim.SGD(model.parameters()), "main")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"log": "everything"}, "got 'everything'"),
        ({"durability": "none"}, "durability must be .* got 'none'"),
        ({"segment_bytes": 10}, "segment_bytes must be at least 1048576, got 10"),
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
        for number in optimizer.steps(8, stateless=True):
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
        for number in optimizer.steps(7, stateless=True):
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
    for number in optimizer.steps(6, stateless=True):
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

    def train(*, fails: bool) -> list[int]:
        model, taken = small(), []
        with logged(model, run) as optimizer:
            assert optimizer.recover().step == (0 if fails else 3)
            for number in optimizer.steps(6):
                one_step(model, optimizer, number)
                taken.append(number)
                if fails and number == 3:
                    raise KeyError("in the middle of a batch")
        return taken

    with pytest.raises(KeyError):
        train(fails=True)
    assert "The log ends at step 3" in caplog.text
    assert train(fails=False) == [3, 4, 5]


def test_loop_that_ends_by_its_own_break_loses_nothing_and_warns_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"

    def train() -> tuple[list[int], Any]:
        model, numbers = small(), []
        optimizer = logged(model, run)
        optimizer.recover()
        for number in optimizer.steps(100, stateless=True):
            one_step(model, optimizer, number)
            numbers.append(number)
            if number == 4:
                break
        optimizer.close()
        return numbers, everything(model, optimizer)

    numbers, trained = train()
    assert numbers == [0, 1, 2, 3, 4]
    (warned,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "numbers starts over at each start" in warned
    again, same = train()
    assert again == [4]
    assert differences(same, trained) == []


# GradScaler


def scaled(attempt: Attempt, *, fused: bool, unscale: bool, is_zeroed_first: bool = False) -> None:
    """float16-like training on the CPU: three steps are skipped for infinite gradients."""
    model = small()
    kind = partial(torch.optim.AdamW, fused=True) if fused else torch.optim.AdamW
    optimizer = attempt.wrap(kind(model.parameters(), lr=0.01), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
    scheduler = lr_scheduler.StepLR(optimizer, 3, 0.9)
    attempt.start(optimizer, scaler=scaler, scheduler=scheduler)
    for number in optimizer.steps(14, stateless=True):
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


@pytest.mark.parametrize(("fused", "unscale"), campaign.each_once([False, True], [False, True]))
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


def test_steps_are_skipped_before_and_after_a_crash(tmp_path: Path) -> None:
    """A scale that is far too large at first: units without a step are finished in each life, and none is computed again."""

    def script(attempt: Attempt) -> None:
        model = small()
        optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
        attempt.start(optimizer, scaler=scaler)
        for number in optimizer.steps(12, stateless=True):
            attempt.tick()
            optimizer.zero_grad()
            loss = model(torch.full((3, 4), 0.1 * number)).square().sum()
            scaler.scale(loss * float("inf") if number < 9 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        attempt.keep(model=model, optimizer=optimizer, scaler=scaler)
        optimizer.close()

    last = prove_exact(script, tmp_path / "run", (6, 4, 1))
    assert (last.reports[0].step, last.reports[0].batch) == (0, 8)


def test_scaler_that_nobody_tracks_is_named(tmp_path: Path) -> None:
    model = small()
    scaler = torch.amp.GradScaler("cpu")
    with logged(model, tmp_path / "run") as optimizer:
        optimizer.recover()
        for number in optimizer.steps(2):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((3, 4), 0.1 * number)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert sum("GradScaler that steps an optimizer is not tracked" in note for note in optimizer.report.notes) == 1


def test_scaler_that_comes_late_is_named(tmp_path: Path) -> None:
    """Mixed precision after a warm-up: the first steps are taken without it."""
    model = small()
    scaler = torch.amp.GradScaler("cpu")
    with logged(model, tmp_path / "run") as optimizer:
        optimizer.recover()
        for number in optimizer.steps(22):
            optimizer.zero_grad()
            loss = model(torch.full((3, 4), 0.1 * number)).sum()
            if number < 20:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        assert sum("GradScaler that steps an optimizer is not tracked" in note for note in optimizer.report.notes) == 1


class Noisy(torch.optim.SGD):
    """An optimizer whose step takes an argument besides the closure."""

    def step(self, closure: Any = None, noise: float = 0.0) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(noise)
        return super().step(closure)


@pytest.mark.parametrize("way", ["position", "name", "scaler"])
def test_arguments_of_a_step_reach_the_optimizer(way: str, tmp_path: Path) -> None:
    def script(attempt: Attempt) -> None:
        model = small()
        optimizer = attempt.wrap(Noisy(model.parameters(), 0.01), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        attempt.start(optimizer, scaler=scaler)
        for number in optimizer.steps(9, stateless=True):
            optimizer.zero_grad()
            loss = model(torch.full((3, 4), 0.1 * number)).square().sum()
            (scaler.scale(loss) if way == "scaler" else loss).backward()
            attempt.tick()
            if way == "scaler":
                scaler.step(optimizer, noise=0.1 * number)
                scaler.update()
            elif way == "position":
                optimizer.step(None, 0.1 * number)
            else:
                optimizer.step(noise=0.1 * number)
            attempt.tick()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (9, 4))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscales_inner", [False, True])
def test_gradients_that_would_be_unscaled_twice_are_refused(unscales_inner: bool, fused: bool, tmp_path: Path) -> None:
    model = small()
    inner = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    with logged(model, tmp_path / "run", inner) as optimizer:
        optimizer.track(scaler=scaler).recover()
        scaler.scale(model(torch.ones(3, 4)).sum()).backward()
        scaler.unscale_(inner if unscales_inner else optimizer)
        with pytest.raises(UsageError, match="unscales the gradients twice"):
            scaler.step(optimizer if unscales_inner else inner)


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
    other = attempt.add_optimizer(optimizer, inner, "b")
    if attempt.run is None:
        other.clip_grad_norm_ = lambda norm: torch.nn.utils.clip_grad_norm_(second.parameters(), norm)
    attempt.start(optimizer)
    for number in optimizer.steps(9, stateless=True):
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


@pytest.mark.parametrize("writer", ["direct", "thread"])
def test_clipping_crosswise_comes_back_to_the_bit(writer: str, tmp_path: Path) -> None:
    prove_exact(clipped_crosswise, tmp_path / "run", (12, 2), checkpoint_every=1000, writer=writer)


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
        for number in optimizer.steps(3, stateless=True):
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
