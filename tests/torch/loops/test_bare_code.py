"""Code that does not go by the book: interrupted anywhere, run twice, copied, built in another order, started late."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.support import campaign
from tests.torch.lab import Attempt, Script, contents, differences, flatten, in_child, uninterrupted
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tests.torch.scripts import accumulating
from tranlogs.base.errors import StateMismatch


class Stop(Exception):
    """Something in the loop went wrong."""


class Raising(Attempt):
    """Raises where others die, and closes as `with` does."""

    logged: Any = None

    def wrap(self, optimizer: torch.optim.Optimizer, model: Any = None, **options: Any) -> Any:
        self.logged = super().wrap(optimizer, model, **options)
        return self.logged

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks == self.die_at:
            raise Stop

    def has_finished(self, script: Script) -> bool:
        """Run; False if it was interrupted."""
        try:
            script(self)
        except (Stop, KeyboardInterrupt, RuntimeError) as error:
            is_locks_own = isinstance(error.__context__, KeyboardInterrupt)  # Python's Condition, interrupted while it waits
            if isinstance(error, RuntimeError) and not is_locks_own:
                raise
            if self.logged is not None:
                self.logged.close()
            return False
        return True


def ignore_dropped_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops a Ctrl-C that comes while a callback of the garbage collector or of a weak reference runs."""
    others = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            others(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", hook)


class Interrupt:
    """Ctrl-C as Python sees it, when the main thread has called a number of functions.

    Calls are counted, and not seconds: a timer strikes other code on another machine or under load, so that a seed repeats
    nothing, and it may strike this test when the loop has already ended.
    """

    def __init__(self, calls: float) -> None:
        self.calls, self._last = 0, calls

    def arm(self) -> None:
        """Count from now on."""
        sys.setprofile(self._count)

    def disarm(self) -> None:
        """Let the loop end undisturbed."""
        sys.setprofile(None)

    def arm_when_started(self, attempt: Attempt) -> None:
        """Count from the first batch of the attempt on."""
        start = attempt.start

        def started(*things: Any, **tracked: Any) -> None:
            start(*things, **tracked)
            self.arm()

        attempt.start = started  # type: ignore[method-assign]

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        self.calls += event == "call"
        if self.calls >= self._last:
            self.disarm()
            signal.raise_signal(signal.SIGVTALRM)


def calls_of(script: Script, run: Path) -> int:
    """Return how many functions the script calls from its first batch to its last, in a run of its own."""
    attempt, interrupt = Raising(run), Interrupt(float("inf"))
    interrupt.arm_when_started(attempt)
    assert attempt.has_finished(script)
    interrupt.disarm()
    attempt.logged.close()
    return interrupt.calls


def test_keyboard_interrupt_at_any_moment_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts strike in the user's code, in torch's, and in the middle of ours."""
    ignore_dropped_interrupts(monkeypatch)
    script, times = partial(accumulating, batches=10), 4
    moments = campaign.dice("interrupts")
    calls = calls_of(script, tmp_path / "counted")
    right = uninterrupted(script)
    run = tmp_path / "run"
    before = signal.signal(signal.SIGVTALRM, signal.default_int_handler)  # SIGALRM is pytest-timeout's
    interrupted = 0
    try:
        for _ in range(times):
            attempt, interrupt = Raising(run), Interrupt(moments.randrange(1, calls))
            interrupt.arm_when_started(attempt)
            with suppress(KeyboardInterrupt):  # the last function that is counted is `disarm`
                interrupted += not attempt.has_finished(script)
                interrupt.disarm()
            attempt.logged.close()
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert interrupted
    last = Raising(run)
    assert last.has_finished(script)
    assert last.logged.report.exact is True
    assert differences(last.outcome(), right.outcome()) == []


# Notebooks


def test_cell_with_the_loop_may_be_interrupted_and_run_again(tmp_path: Path) -> None:
    """In the same process: what was done stays done, and the log goes along."""
    for place in (1, 3):
        run = tmp_path / str(place)
        seed()
        model, loader = Mixed(), tokens()
        attempt = Raising(run, 3 * place + place % 3)
        optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
        attempt.start(optimizer, loader=loader)

        def cell(optimizer: Any = optimizer, model: nn.Module = model, loader: Any = loader, attempt: Any = attempt) -> None:
            for batch in optimizer.batches(loader, 12):
                attempt.tick()
                loss_of(model, batch).backward()
                attempt.tick()
                optimizer.step()
                attempt.tick()
                optimizer.zero_grad()

        with pytest.raises(Stop):
            cell()
        cell()
        cell()  # nothing is left
        live = flatten({"model": contents(model), "optimizer": contents(optimizer)})
        optimizer.close()
        again = Mixed()
        optimizer = Attempt(run).wrap(torch.optim.AdamW(again.parameters(), lr=0.01), again)
        report = optimizer.track(loader=tokens()).recover()
        assert (report.batch, report.exact) == (12, True)
        assert differences(flatten({"model": contents(again), "optimizer": contents(optimizer)}), live) == []
        optimizer.close()


# Built otherwise


class Ordered(nn.Module):
    """Its layers are made in the given order; its names and its arithmetic stay."""

    def __init__(self, order: str) -> None:
        super().__init__()
        for name in order:
            setattr(self, name, nn.Linear(4, 4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.tanh(self.norm(self.b(torch.tanh(self.a(x))))))


def reordered(attempt: Attempt, *, orders: list[str]) -> None:
    order = orders.pop(0) if attempt.run is not None else "abc"
    seed()
    model = Ordered(order)
    others = [p for name in (*order[::-1], "norm") if name != "c" for p in getattr(model, name).parameters()]
    groups = [{"params": model.c.parameters(), "lr": 0.1}, {"params": others}]
    optimizer = attempt.wrap(torch.optim.AdamW(groups, lr=0.01), model)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    attempt.start(optimizer, scheduler=scheduler)
    for _ in optimizer.steps(14, stateless=True):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().sum().backward()
        attempt.tick()
        optimizer.clip_grad_norm_(0.3)
        optimizer.step()
        scheduler.step()
        attempt.tick()
    parameters = {name: (p, optimizer.state[p]) for name, p in sorted(model.named_parameters())}
    attempt.keep(parameters=parameters, scheduler=scheduler, buffers=dict(model.named_buffers()))
    optimizer.close()


def test_model_built_in_another_order_is_matched_by_name(tmp_path: Path) -> None:
    right = uninterrupted(partial(reordered, orders=[]))
    run = tmp_path / "run"
    assert in_child(lambda: reordered(Attempt(run, 9), orders=["abc"])) == -signal.SIGKILL
    assert in_child(lambda: reordered(Attempt(run, 9), orders=["cba"])) == -signal.SIGKILL
    last = Attempt(run)
    reordered(last, orders=["bca"])
    assert last.reports[0].step > 4
    assert last.final_report().exact is True
    assert differences(last.outcome(), right.outcome()) == []


def test_parameters_without_a_model_are_matched_by_place_or_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def build(*shapes: tuple[int, ...]) -> tuple[list[nn.Parameter], Any]:
        parameters = [nn.Parameter(torch.ones(shape)) for shape in shapes]
        return parameters, Attempt(run).wrap(torch.optim.SGD(parameters, lr=0.1))

    parameters, optimizer = build((3,), (2, 2))
    optimizer.recover()
    for _ in optimizer.steps(3):
        sum(p.square().sum() for p in parameters).backward()
        optimizer.step()
    optimizer.close()
    _, optimizer = build((2, 2), (3,))
    with pytest.raises(StateMismatch, match=r"main\.group0\.param0: recorded as float32\[3\], now float32\[2, 2\]"):
        optimizer.recover()
    optimizer.close()
    _, optimizer = build((3,), (2, 2))
    report = optimizer.recover()
    assert report.exact is None
    assert any("matched by position" in note for note in report.notes)
    optimizer.close()
