"""The wrapper is an optimizer like any other."""

from __future__ import annotations

import copy
import io
import pickle
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
from tests.torch.lab import Attempt, differences, flatten, prove_exact
from tests.torch.nets import everything, logged, one_step, small
from tests.torch.scripts import simple
from tranlogs.base.errors import UnencodableState, UsageError
from tranlogs_torch.loops import boundaries
from tranlogs_torch.state.naming import as_modules, clean_names, named_parameters

# An optimizer like any other


def test_it_is_an_optimizer_and_shares_all_with_the_inner(tmp_path: Path) -> None:
    model = small()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    with logged(model, tmp_path / "run", inner) as optimizer:
        assert isinstance(optimizer, torch.optim.Optimizer)
        assert optimizer.param_groups is inner.param_groups
        assert optimizer.state is inner.state
        scheduler = lr_scheduler.StepLR(optimizer, 2)
        optimizer.recover()
        for number in optimizer.steps(4):
            one_step(model, inner if number % 2 else optimizer, number)  # a step of the inner is logged, once
            scheduler.step()  # it would warn if it had not seen the step
        assert optimizer.watermarks["committed"] == 4
        assert optimizer.state_dict().keys() == inner.state_dict().keys()
        optimizer.param_groups[0]["lr"] = 0.5
        assert inner.param_groups[0]["lr"] == 0.5
        assert "AdamW" in repr(optimizer)
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        assert len(inner.param_groups) == 2


@pytest.mark.parametrize("how", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_are_plain_and_files_need_nothing_of_ours(how: Callable[[Any], Any], tmp_path: Path) -> None:
    model = small()
    with logged(model, tmp_path / "run") as optimizer:
        optimizer.recover()
        for _ in range(2):  # a loop of the user's own
            one_step(model, optimizer)
        other, twin = how(optimizer), how(model)
        assert type(other) is torch.optim.AdamW
        assert not other._optimizer_step_pre_hooks
        assert differences(flatten(other.state_dict()), flatten(optimizer.state_dict())) == []
        before = dict(optimizer.watermarks)
        other.step()
        one_step(twin, torch.optim.SGD(twin.parameters()))
        assert dict(optimizer.watermarks) == before
        file = io.BytesIO()
        torch.save(model, file)
        assert b"tranlogs" not in pickle.dumps(model)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert torch.equal(loaded(torch.ones(1, 4)), model(torch.ones(1, 4)))


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


def test_the_module_has_a_hook_only_outside_of_loops(tmp_path: Path) -> None:
    model = small()
    with logged(model, tmp_path / "run") as optimizer:
        optimizer.recover()
        hooks = [len(model._forward_pre_hooks)]
        for number in optimizer.steps(2, stateless=True):
            hooks.append(len(model._forward_pre_hooks))
            one_step(model, optimizer, number)
        hooks.append(len(model._forward_pre_hooks))
    assert [*hooks, len(model._forward_pre_hooks)] == [1, 0, 0, 1, 0]


def test_a_loop_that_asks_for_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable may hold the iterator of a loop that was left, whose last unit then takes in all steps that follow."""
    monkeypatch.setattr(boundaries, "_LONG_UNIT", 5)
    model = small()
    with logged(model, tmp_path / "run") as optimizer:
        optimizer.recover()
        held = optimizer.steps(9, stateless=True)
        next(held)
        for number in range(5):
            one_step(model, optimizer, number)
        assert optimizer.report is not None
        assert [note for note in optimizer.report.notes if "the loop has asked for no batch" in note]
        held.close()


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


def test_optimizer_that_cannot_be_logged_is_refused(tmp_path: Path) -> None:
    model = small()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    with pytest.raises(UsageError, match="differentiable"):
        logged(model, tmp_path / "run", torch.optim.SGD(model.parameters(), lr=0.1, differentiable=True))
    with pytest.raises(UsageError, match="a list"):
        logged(model, tmp_path / "run", [])  # type: ignore[arg-type]
    group = {"params": list(model.parameters()), "why": object()}
    with pytest.raises(UnencodableState, match=r"optimizer 'main'.param_groups\[0\]\['why'\]"):
        logged(model, tmp_path / "run", torch.optim.SGD([group], lr=0.1))
    with logged(model, tmp_path / "run", inner) as optimizer:
        with pytest.raises(UsageError, match="already logged"):
            logged(model, tmp_path / "other", optimizer)
        with pytest.raises(UsageError, match="is already logged in run"):
            logged(model, tmp_path / "other", inner)
        with pytest.raises(UsageError, match="already has an optimizer 'main'"):
            optimizer.add_optimizer(torch.optim.SGD(model.parameters()), "main")


# Scripts that are killed: hooks, closures, exceptions, gradients that are scaled or clipped


def hooked(attempt: Attempt, *, when: str) -> None:
    """A user's hooks clip gradients before the step and weights after it; a global hook halves gradients."""
    model = small()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def clip(*_: Any) -> None:
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)

    def clamp(*_: Any) -> None:
        for p in model.parameters():
            p.data.clamp_(-0.4, 0.4)

    def halve(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)

    registered = list[int]()

    def register(number: int, optimizer: Any) -> None:
        if when == "late" and number >= 3 and not registered:  # right before a step, in each life
            registered.append(number)
            inner.register_step_pre_hook(clip)
            inner.register_step_post_hook(clamp)

    if when == "early":
        inner.register_step_pre_hook(clip)
        inner.register_step_post_hook(clamp)
    handle = register_optimizer_step_pre_hook(halve)
    try:
        simple(attempt, model, inner, turns=8, width=4, change=register)
    finally:
        handle.remove()


class Noisy(torch.optim.SGD):
    """An optimizer whose step takes an argument besides the closure."""

    def step(self, closure: Any = None, noise: float = 0.0) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(noise)
        return super().step(closure)


def with_arguments(attempt: Attempt) -> None:
    """By position, by name, and through a scaler."""
    model = small()
    optimizer = attempt.wrap(Noisy(model.parameters(), 0.01), model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    attempt.start(optimizer, scaler=scaler)
    for number in optimizer.steps(9, stateless=True):
        optimizer.zero_grad()
        loss = model(torch.full((3, 4), 0.1 * number)).square().sum()
        (scaler.scale(loss) if number % 3 == 0 else loss).backward()
        attempt.tick()
        if number % 3 == 0:
            scaler.step(optimizer, noise=0.1 * number)
            scaler.update()
        elif number % 3 == 1:
            optimizer.step(None, 0.1 * number)
        else:
            optimizer.step(noise=0.1 * number)
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


def clipped_crosswise(attempt: Attempt) -> None:
    """Both are clipped before either steps; a clipped step is dropped; clipped gradients are changed once more.

    It ticks behind the gradients and behind the batch.
    """
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
        if number == 5:
            first[0].weight.grad.mul_(0.5)
        if number % 4 != 2:  # else it is not to be stepped at all
            optimizer.step()
            other.step()
        optimizer.zero_grad()
        other.zero_grad()
        attempt.tick()
    attempt.keep(first=first, second=second, optimizer=optimizer, inner=inner)
    optimizer.close()


@pytest.mark.parametrize(
    ("script", "die_at"),
    [
        pytest.param(partial(hooked, when="early"), (5,), id="hooks"),
        pytest.param(partial(hooked, when="late"), (7,), id="hooks registered right before a step"),
        pytest.param(with_arguments, (9,), id="arguments of a step"),
    ],
)
def test_script_comes_back_to_the_bit(script: Callable[[Attempt], None], die_at: tuple[int, ...], tmp_path: Path) -> None:
    """What hooks do is in the log and not done twice, arguments reach the optimizer."""
    prove_exact(script, tmp_path / "run", die_at, checkpoint_every=1000)


@pytest.mark.parametrize(("die_at", "writer"), campaign.each_once([12, 15], ["direct", "thread"]))
def test_clipping_crosswise_comes_back_to_the_bit(die_at: int, writer: str, tmp_path: Path) -> None:
    prove_exact(clipped_crosswise, tmp_path / "run", (die_at,), checkpoint_every=1000, writer=writer)


def test_step_that_raises_leaves_nothing_behind(tmp_path: Path) -> None:
    model = small()

    def refuse(*_: Any) -> None:
        raise ValueError("not today")

    optimizer = logged(model, tmp_path / "run", checkpoint_every=1000, recheck=False)
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
    with logged(model, tmp_path / "run", recheck=False) as optimizer:
        report = optimizer.recover()
        assert (report.step, report.exact) == (6, True)
        assert differences(everything(model, optimizer), trained) == []


@pytest.mark.parametrize("begins", [0, 20])
def test_scaler_that_nobody_tracks_is_named(begins: int, tmp_path: Path) -> None:
    """Also one that comes late: mixed precision after a warm-up."""
    model, scaler = small(), torch.amp.GradScaler("cpu")
    with logged(model, tmp_path / "run") as optimizer:
        optimizer.recover()
        for number in optimizer.steps(begins + 2):
            optimizer.zero_grad()
            loss = model(torch.full((3, 4), 0.1 * number)).sum()
            if number < begins:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        assert sum("optimizer.track(scaler=scaler) before recover()" in note for note in optimizer.report.notes) == 1


@pytest.mark.parametrize(("fused", "unscales_inner"), campaign.each_once([False, True], [False, True]))
def test_gradients_that_would_be_unscaled_twice_are_refused(unscales_inner: bool, fused: bool, tmp_path: Path) -> None:
    model = small()
    inner, scaler = torch.optim.AdamW(model.parameters(), fused=fused), torch.amp.GradScaler("cpu")
    with logged(model, tmp_path / "run", inner) as optimizer:
        optimizer.track(scaler=scaler).recover()
        scaler.scale(model(torch.ones(3, 4)).sum()).backward()
        scaler.unscale_(inner if unscales_inner else optimizer)
        with pytest.raises(UsageError, match="unscales the gradients twice"):
            scaler.step(optimizer if unscales_inner else inner)


# Names


def test_names_are_those_of_the_bare_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.module = nn.Linear(2, 2), nn.ModuleDict({"fc": nn.Linear(2, 2)})

    model = small()
    names = list(named_parameters(as_modules(model)))
    assert list(named_parameters(as_modules(torch.compile(model)))) == names
    assert list(named_parameters(as_modules(torch.optim.swa_utils.AveragedModel(model)))) == names
    assert [*named_parameters(as_modules(Net()))] == ["fc.weight", "fc.bias", "module.fc.weight", "module.fc.bias"]
    assert clean_names(["module.a", "module.module.a"]) == {"module.a": "a", "module.module.a": "module.a"}
