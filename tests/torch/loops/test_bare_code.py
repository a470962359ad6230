"""Code that does not go by the book: interrupted anywhere, run twice, copied, built in another order, started late."""

from __future__ import annotations

import copy
import pickle
import shutil
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from tests.support import campaign
from tests.torch.lab import Attempt, Script, contents, differences, flatten, in_child, prove_exact, uninterrupted
from tests.torch.nets import Mixed, loss_of, seed, tokens
from tests.torch.scripts import accumulating, adversarial, numbered, per_epoch, validate, validating, without_loader
from tranlogs.base.errors import RunInUse, StateMismatch
from tranlogs_torch import LoggedOptimizer


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


LOOPS: dict[str, tuple[Script, int]] = {
    "validating": (partial(validating, batches=8), 9),
    "accumulating": (partial(accumulating, batches=13), 14),
    "per epoch": (partial(per_epoch, epochs=2), 27),
    "adversarial": (partial(adversarial, batches=8), 12),
    "without loader": (partial(without_loader, batches=8), 5),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LOOPS)
def test_exception_anywhere_in_a_loop_costs_that_batch_only(name: str, tmp_path: Path) -> None:
    """Raised at each place of the body in turn, each time a little further on."""
    script, places = LOOPS[name]
    right = uninterrupted(script)
    run = tmp_path / "run"
    for place in range(1, places):
        if Raising(run, place).has_finished(script):
            break
    last = Raising(run)
    assert last.has_finished(script)
    assert last.reports[0].exact is True
    assert differences(last.outcome(), right.outcome()) == []


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["validating", "adversarial", "accumulating"])
def test_keyboard_interrupt_at_any_moment_loses_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts strike in the user's code, in torch's, and in the middle of ours."""
    ignore_dropped_interrupts(monkeypatch)
    script, times = LOOPS[name][0], 14
    moments = campaign.dice("interrupts", name)
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
    assert last.reports[0].exact is True
    assert differences(last.outcome(), right.outcome()) == []


# Notebooks


def test_cell_with_the_loop_may_be_interrupted_and_run_again(tmp_path: Path) -> None:
    """In the same process: what was done stays done, and the log goes along."""
    for place in range(1, 5):
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


def test_cell_that_wraps_may_be_run_again_after_close_and_says_so_before(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def cell() -> tuple[nn.Module, LoggedOptimizer]:
        seed()
        model = nn.Linear(3, 2)
        return model, LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), run, model, durability="process")

    model, optimizer = cell()
    optimizer.recover()
    for _ in optimizer.steps(3):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    with pytest.raises(RunInUse) as caught:
        cell()
    assert "this process writes this run already" in str(caught.value)
    assert "close()" in str(caught.value)
    for _ in optimizer.steps(4):  # the first one goes on, with a loop of its own
        optimizer.step()
    optimizer.close()
    other, again = cell()
    assert again.recover().step == 7
    assert torch.equal(other.weight, model.weight)
    again.close()


def test_a_copy_of_the_run_that_the_loop_makes_recovers_to_the_boundary_before(tmp_path: Path) -> None:
    run, backup = tmp_path / "run", tmp_path / "copied"

    def train(folder: Path, until: int) -> tuple[Any, nn.Module, list[torch.Tensor]]:
        seed()
        model = nn.Linear(3, 2)
        optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1), folder, model)
        report, weights = optimizer.recover(), list[torch.Tensor]()
        for number in optimizer.steps(until):
            weights.append(model.weight.detach().clone())
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().sum().backward()
            if number == 5 and not backup.exists():
                shutil.copytree(run, backup)
            optimizer.step()
        optimizer.close()
        return optimizer.report or report, model, weights

    _, model, weights = train(run, 8)
    report, copied, again = train(backup, 8)
    assert report.step == 5
    assert torch.equal(again[-1], weights[-1])
    assert torch.equal(copied.weight, model.weight)


# Copies


def test_copies_of_what_is_logged_stand_on_their_own(tmp_path: Path) -> None:
    """Model, optimizer and scheduler, copied together and one by one, by deepcopy and pickle, in the middle of a loop."""
    model = nn.Linear(3, 2)
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.AdamW(model.parameters(), lr=0.1), model)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    on_inner = lr_scheduler.ExponentialLR(optimizer.inner, 0.9)
    optimizer.track(scheduler=scheduler, other=on_inner).recover()
    for turn in optimizer.steps(6, stateless=True):
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        scheduler.step()
        on_inner.step()
        if turn == 2:
            for copied in (copy.deepcopy, lambda things: pickle.loads(pickle.dumps(things))):
                twin, stepped, scheduled = copied((model, optimizer, scheduler))
                assert type(stepped) is torch.optim.AdamW
                assert stepped.param_groups[0]["params"][0] is twin.weight
                copied(on_inner)
                before = flatten(contents(model)), optimizer.watermarks, optimizer.param_groups[0]["lr"]
                twin(torch.ones(2, 3)).square().sum().backward()
                stepped.step()
                scheduled.step()
                assert (flatten(contents(model)), optimizer.watermarks, optimizer.param_groups[0]["lr"]) == before
    optimizer.close()
    again = nn.Linear(3, 2)
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.AdamW(again.parameters(), lr=0.1), again)
    scheduler, on_inner = lr_scheduler.StepLR(optimizer, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)
    report = optimizer.track(scheduler=scheduler, other=on_inner).recover()
    assert (report.step, report.exact) == (6, True)
    assert torch.equal(again.weight, model.weight)
    optimizer.close()


def test_forked_child_may_train_and_the_run_is_the_parent_s(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.AdamW(model.parameters(), lr=0.1), model)
    optimizer.recover()

    def one_step() -> None:
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()

    def child() -> None:
        before = model.weight.clone()
        one_step()
        assert not torch.equal(before, model.weight)
        optimizer.close()

    for _ in optimizer.steps(5, stateless=True):
        one_step()
        assert in_child(child) == 0
    optimizer.close()
    again = nn.Linear(3, 2)
    optimizer = Attempt(tmp_path / "run").wrap(torch.optim.AdamW(again.parameters(), lr=0.1), again)
    report = optimizer.recover()
    assert report.step == 5
    assert torch.equal(again.weight, model.weight)
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
    assert last.reports[0].exact is True
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


# Recovered late


def late(attempt: Attempt) -> None:
    """Between construction and recovery everything is used; between recovery and the loop, some of it."""
    seed()
    model = Mixed()
    loader, validation = tokens(), tokens(22)
    optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
    scheduler = lr_scheduler.StepLR(optimizer, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=5)
    average = AveragedModel(model)
    for batch in loader:  # a sanity pass over the training data, in training mode
        scaler.scale(loss_of(model, batch)).backward()
    validate(model, validation)
    np.random.rand()
    with torch.no_grad():
        model.scale.mul_(0.5)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    average.update_parameters(model)
    optimizer.zero_grad()
    attempt.start(optimizer, scheduler=scheduler, scaler=scaler, average=average, loader=loader)
    if attempt.reports and attempt.reports[0].step:  # the run that is not interrupted does not do this
        validate(model, validation)
        copy.deepcopy(model)
        next(iter(loader))
    for number, batch in numbered(optimizer, optimizer.batches(loader, 16)):
        attempt.saw(number, batch)
        scaler.scale(loss_of(model, batch)).backward()
        attempt.tick()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        average.update_parameters(model)
        optimizer.zero_grad()
        attempt.tick()
    attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, average=average)
    optimizer.close()


def test_recovery_long_after_construction_is_exact(tmp_path: Path) -> None:
    prove_exact(late, tmp_path / "run", (9, 8))


# Other libraries


@pytest.mark.filterwarnings("ignore")
def test_accelerate_takes_the_wrapper(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")

    def script(attempt: Attempt) -> None:
        seed()
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
        loader = DataLoader(torch.randn(36, 6), batch_size=4, shuffle=True)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        optimizer = attempt.wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model)
        scheduler = lr_scheduler.StepLR(optimizer, 3)
        prepared, stepped, scheduled = accelerator.prepare(model, optimizer, scheduler)
        attempt.start(optimizer, scheduler=scheduler, loader=loader)
        accelerator.step = attempt.reports[0].batch if attempt.reports else 0
        for number, x in numbered(optimizer, optimizer.batches(loader, 16)):
            attempt.saw(number, x)
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(x).square().sum())
                attempt.tick()
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
                stepped.step()
                scheduled.step()
                stepped.zero_grad()
            attempt.tick()
        attempt.keep(model=model, optimizer=optimizer, scheduler=scheduler)
        optimizer.close()
        accelerate.Accelerator().free_memory()
        accelerate.state.AcceleratorState._reset_state(True)

    last = prove_exact(script, tmp_path / "run", (11, 9))
    assert last.reports[0].batch % 2 == 0


@pytest.mark.filterwarnings("ignore")
def test_torchmetrics_come_back_where_they_are_persistent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")

    def script(attempt: Attempt, *, is_persistent: bool = True) -> None:
        seed()
        model = nn.Linear(4, 3)
        metrics = torchmetrics.MetricCollection(
            {"loss": torchmetrics.MeanMetric(), "right": torchmetrics.classification.MulticlassAccuracy(3)}
        )
        metrics.persistent(is_persistent)
        optimizer = attempt.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        attempt.start(optimizer, metrics=metrics)
        for _ in optimizer.steps(9, stateless=True):
            optimizer.zero_grad()
            x, y = torch.randn(5, 4), torch.randint(3, (5,))
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            attempt.tick()
            optimizer.step()
            metrics["loss"].update(loss.detach())
            metrics["right"].update(model(x).detach(), y)
            attempt.tick()
        attempt.keep(model=model, metrics={name: metric.compute() for name, metric in metrics.items()})
        optimizer.close()

    prove_exact(script, tmp_path / "run", (7, 6))
    script(Attempt(tmp_path / "other"), is_persistent=False)
    assert "its state_dict is empty" in caplog.text
