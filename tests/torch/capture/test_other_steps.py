"""Steps that are not one of torch.optim's, taken once a batch by the plain kernel: exact, or refused in words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.torch.lab import Attempt, prove_exact
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tests.torch.scripts import validate
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer

schedulefree = pytest.importorskip("schedulefree")

Make = Callable[[Any], torch.optim.Optimizer]
FOUND_OUT = "now logs weights and state"


def net() -> nn.Sequential:
    seed()
    return nn.Sequential(nn.Linear(6, 33), nn.Tanh(), nn.Linear(33, 3))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def simple(attempt: Attempt, *, optimizer_of: Make, closure: bool = False, compiled: str = "", batches: int = 9) -> None:
    """A step a turn, a scheduler after it; the step, or the whole turn, may be compiled."""
    torch._dynamo.reset()
    model = net()
    inner = optimizer_of(model.parameters())
    optimizer = attempt.wrap(inner, model)
    scheduler = None if "step" in compiled else lr_scheduler.StepLR(inner if closure else optimizer, 3)
    attempt.start(optimizer, **({"scheduler": scheduler} if scheduler else {}))

    def work(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    def turn(x: torch.Tensor) -> None:
        work(x)
        optimizer.step()

    if compiled == "turn":
        turn = torch.compile(turn, backend="eager")
    elif compiled:
        step = torch.compile({"step": optimizer, "step of the inner": inner}[compiled].step, backend="eager")
    for _ in optimizer.steps(batches, stateless=True):
        x = torch.randn(5, 6)
        attempt.tick()
        if closure:
            optimizer.step(partial(work, x))
        elif compiled in ("", "turn"):
            turn(x)
        else:
            work(x)
            optimizer.clip_grad_norm_(0.5)
            step()
        attempt.tick()
        if scheduler is not None and not compiled:
            scheduler.step()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore")  # of the compiler
@pytest.mark.parametrize("compiled", ["step", "step of the inner", "turn"])
def test_compiled_step_is_found_out_and_weights_are_logged(
    compiled: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prove_exact(partial(simple, optimizer_of=adamw, compiled=compiled), tmp_path / "run", (9,))
    assert caplog.text.count(FOUND_OUT) == 1
    assert "its compiled step" in caplog.text


# Optimizers that are not torch's


class Plain(torch.optim.Optimizer):
    """Sign descent: gradients tell it all."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})
        self.scale = 0.5

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(group, p, loss)
        return loss

    def update(self, group: dict[str, Any], p: torch.Tensor, loss: Any) -> None:
        p.sub_(p.grad.sign(), alpha=group["lr"] * self.scale)


class Noisy(Plain):
    """Draws random numbers in its step."""

    def update(self, group: dict[str, Any], p: torch.Tensor, loss: Any) -> None:
        p.sub_(p.grad + 0.01 * torch.randn_like(p), alpha=group["lr"])


class Polyak(Plain):
    """Its step size follows the loss."""

    def update(self, group: dict[str, Any], p: torch.Tensor, loss: Any) -> None:
        p.sub_(p.grad, alpha=group["lr"] * float(loss) / (1 + float(loss)))


class Twice(Plain):
    """Evaluates its closure at another place, as SAM does, and steps with what it finds there."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        before = [p.clone() for p in parameters]
        for p in parameters:
            p.add_(p.grad, alpha=0.05)
        with torch.enable_grad():
            loss = closure()
        for p, old in zip(parameters, before, strict=True):
            p.copy_(old)
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])
        return loss


class Counting(Plain):
    """Counts on itself, and does otherwise at each third step."""

    def __init__(self, parameters: Any, rounds: int = 0) -> None:
        super().__init__(parameters)
        self.rounds = rounds

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.rounds += 1
        self.scale = 0.5 if self.rounds % 3 else 2.0
        return super().step(closure)


class Unforgettable(Plain):
    """Something would happen when a copy of it goes away."""

    def __del__(self) -> None:
        pass


class Decaying(torch.optim.SGD):
    """Does something after the step of the class above it: torch runs the hooks twice then."""

    def __init__(self, parameters: Any) -> None:
        torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # once one of the class above was made
        super().__init__(parameters, lr=0.01, momentum=0.9)

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(0.99)
        return loss


@pytest.mark.parametrize(
    ("kind", "closure", "words"),
    [
        (Counting, False, ""),
        (Decaying, False, ""),
        (Decaying, True, ""),
        (Noisy, False, "the same gradients gave different weights"),
        (Polyak, True, "its step needs more than gradients (TypeError"),
        (Twice, True, "evaluates its closure several times"),
        (Unforgettable, False, "has a finalizer"),
        (schedulefree.AdamWScheduleFreeClosure, True, FOUND_OUT),
    ],
)
def test_step_is_redone_from_gradients_only_where_they_tell_it(
    kind: Make, closure: bool, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = prove_exact(partial(simple, optimizer_of=kind, closure=closure), tmp_path / "run", (9,))
    assert last.reports[0].step == last.reports[0].batch, "each step is logged once"
    assert caplog.text.count(FOUND_OUT) == (1 if words else 0)
    assert words in caplog.text


# ScheduleFree and SAM


def free(attempt: Attempt, *, optimizer_of: Make) -> None:
    """The averaged weights are put in place for validation, and taken out again."""
    seed()
    model = Mixed()
    loader, validation = tokens(), tokens(22)
    optimizer = attempt.wrap(optimizer_of([p for p in model.parameters() if p is not model.frozen]), model)
    attempt.start(optimizer, loader=loader)
    for epoch in optimizer.epochs(2, loader):
        optimizer.train()
        for batch in epoch:
            attempt.saw_next(batch)
            loss_of(model, batch).backward()
            attempt.tick()
            optimizer.step()
            optimizer.zero_grad()
            if max(attempt.seen) % 4 == 3:
                optimizer.eval()
                validate(model, validation)
                attempt.tick()
                optimizer.train()
            attempt.tick()
        optimizer.eval()
        validate(model, validation)
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer)
    optimizer.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "optimizer_of",
    [
        partial(schedulefree.AdamWScheduleFree, lr=0.01, warmup_steps=3, weight_decay=0.1, foreach=True),
        partial(schedulefree.AdamWScheduleFree, lr=0.01, foreach=False),
        partial(schedulefree.SGDScheduleFree, lr=0.1, foreach=True),
        partial(schedulefree.RAdamScheduleFree, lr=0.01, foreach=True),
    ],
    ids=["AdamW foreach", "AdamW", "SGD", "RAdam"],
)
def test_schedule_free_comes_back_to_the_bit(optimizer_of: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the middle of an epoch, in validation, and in the epoch's own code."""
    prove_exact(partial(free, optimizer_of=optimizer_of), tmp_path / "run", (5, 9, 16))
    assert FOUND_OUT not in caplog.text  # gradients are enough


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization around a base optimizer: `first_step` climbs, `second_step` returns and descends."""

    def __init__(self, parameters: Any, base: Callable[..., torch.optim.Optimizer], rho: float = 0.05, **options: Any) -> None:
        super().__init__(parameters, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norm = torch.nn.utils.get_total_norm(gradients)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad, alpha=group["rho"] / float(norm))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - (p.data - self.state[p]["old"])
        self.base.step()
        self.zero_grad()


def test_sam_around_a_logged_optimizer_comes_back_to_the_bit(tmp_path: Path) -> None:
    """Two forward and backward passes a step; its base optimizer is the logged one."""

    def script(attempt: Attempt) -> None:
        model = net()
        sam = SAM(model.parameters(), partial(torch.optim.AdamW, fused=True), lr=0.05)
        optimizer = sam.base = attempt.wrap(sam.base, model)
        attempt.start(optimizer)
        for _ in optimizer.steps(9, stateless=True):
            x = torch.randn(4, 6)
            model(x).square().sum().backward()
            attempt.tick()
            sam.first_step()
            attempt.tick()
            model(x).square().sum().backward()
            attempt.tick()
            sam.second_step()
        attempt.keep(model=model, optimizer=optimizer)
        optimizer.close()

    prove_exact(script, tmp_path / "run", (14,))


def test_optimizer_that_keeps_another_is_refused_by_name(tmp_path: Path) -> None:
    model = net()
    sam = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(UsageError, match=r"a SAM keeps another optimizer as \.base.*optimizer\.base = LoggedOptimizer"):
        LoggedOptimizer(sam, tmp_path / "run", model)
    wrapper = schedulefree.ScheduleFreeWrapper(torch.optim.RMSprop(model.parameters()))
    with pytest.raises(UsageError, match=r"a ScheduleFreeWrapper keeps another optimizer as \.base"):
        LoggedOptimizer(wrapper, tmp_path / "run", model)
