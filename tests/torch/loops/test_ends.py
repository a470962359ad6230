"""How scripts end, and what the next start says of it: finished, left by `break`, by an exception, or without `close`."""

from __future__ import annotations

import atexit
import code
import contextlib
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # the first step imports it, which would take every life a second
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.launchers import run_script
from tests.torch.lab import in_child
from tests.torch.nets import logged, one_step, small
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.state.caveats import IMPLICIT

UNSET = dict.fromkeys(("epochs", "batches"), "; the loop body did not run, so `x` is unset")  # it is read behind the loop
FINISHED = (
    "bit-exact): the run is finished; only a longer loop or a further one trains on (for another training, give another folder)"
)
EPOCHS = 6


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


TRAINS_ON = "the run is finished; only a longer loop or a further one trains on"


class Script:
    """Six steps in a run, which may fail in one of them."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.optimizer: Any = None

    def train(self, fails_at: int | None = None) -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        self.optimizer = optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), 0.1), self.run, model)
        Path(f"{self.run}.said").write_text(str(optimizer.recover()))
        for turn in optimizer.steps(6, stateless=True):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            if turn == fails_at:
                raise KeyError("in the loop")

    def close_in_handler(self) -> None:
        self.train()
        try:
            raise ValueError("of something else")
        except ValueError:
            self.optimizer.close()

    def leave_open(self) -> None:
        with contextlib.suppress(ValueError):
            self.train()
            raise ValueError("of something else")

    def fail_in_finally(self) -> None:
        with contextlib.suppress(KeyError):
            try:
                self.train(fails_at=3)
            finally:
                self.optimizer.close()

    def type(self, *lines: str) -> None:
        """Type lines at a prompt, which goes on after an error."""
        sys.ps1 = ">>> "
        console = code.InteractiveConsole({"script": self})
        for line in lines:
            assert not console.push(line)


def said(run: Path, script: Callable[[Script], object]) -> str:
    """Let a script live to the end of its process; return the line of its report."""

    def live() -> None:
        script(Script(run))
        atexit._run_exitfuncs()

    assert in_child(live) == 0
    return Path(f"{run}.said").read_text()


@pytest.mark.parametrize(
    "script",
    [
        Script.close_in_handler,
        Script.leave_open,
        lambda script: script.type("script.train()", "1 / 0"),
        lambda script: script.type("script.train(2)", "script.optimizer.close()", "script.train()"),
    ],
    ids=["closed in a handler", "never closed", "error after", "tried again"],
)
def test_an_exception_that_is_handled_is_no_crash(script: Callable[[Script], object], tmp_path: Path) -> None:
    said(tmp_path / "run", script)
    assert TRAINS_ON in said(tmp_path / "run", Script.train)


@pytest.mark.parametrize(
    "script",
    [Script.fail_in_finally, lambda script: script.type("script.train(3)")],
    ids=["closed in finally", "at a prompt"],
)
def test_an_exception_that_leaves_the_loop_finishes_no_run(script: Callable[[Script], object], tmp_path: Path) -> None:
    said(tmp_path / "run", script)
    again = said(tmp_path / "run", Script.train)
    assert again.startswith("recovered to step 2 ("), "and step 3 is computed again"
    assert TRAINS_ON not in again
    assert TRAINS_ON in said(tmp_path / "run", Script.train)


@pytest.mark.parametrize(("ending", "step"), [("raise KeyError", 3), ("", 5)])
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
    done = run_script(textwrap.dedent(script), tmp_path)
    assert done.returncode == (1 if ending else 0), done.stderr
    model = nn.Linear(4, 2)
    with logged(model, tmp_path / "run", torch.optim.SGD(model.parameters(), lr=0.1)) as optimizer:
        assert optimizer.recover().step == step, "and step 4 is computed again, where the process was not ended orderly"


def test_steps_outside_of_all_loops_are_named_before_a_crash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once: the report of the resumed run has it, and no warning repeats it."""
    run = tmp_path / "run"
    for _ in range(2):
        model = small()
        with logged(model, run) as optimizer:
            optimizer.recover()
            for number in range(20):
                one_step(model, optimizer, number)
            assert optimizer.report.exact is None
            assert optimizer.report.notes == (IMPLICIT,)
        assert [record.getMessage() for record in caplog.records] == [f"{run}: {IMPLICIT}"]


def test_steps_of_a_loop_whose_state_is_remembered_are_no_reason_to_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = small()
    with logged(model, tmp_path / "run") as optimizer:
        state = optimizer.remember(number=0)
        optimizer.recover()
        while state.number < 20:
            one_step(model, optimizer, state.number)
            state.number += 1
        assert optimizer.report.exact is True
    assert [record.getMessage() for record in caplog.records] == []


def test_a_few_steps_before_a_loop_are_no_reason_to_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = small()
    with logged(model, tmp_path / "run") as optimizer:
        optimizer.recover()
        for number in range(5):
            one_step(model, optimizer, number)
        for number in optimizer.steps(20, stateless=True):
            one_step(model, optimizer, number)
        assert optimizer.report.exact is True
    assert [record.getMessage() for record in caplog.records] == []
