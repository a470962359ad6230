"""What counts as the end of a script, and what as a crash: handled exceptions, and those of an interactive session."""

from __future__ import annotations

import atexit
import code
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # the first step imports it, which would take every life a second

from tests.torch.lab import in_child
from tranlogs_torch import LoggedOptimizer

FINISHED = "the run is finished; only a longer loop or a further one trains on"


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

    def train_in_handler(self) -> None:
        try:
            raise ValueError("of something else")
        except ValueError:
            self.train()
            self.optimizer.close()

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

    def fail_and_close(self) -> None:
        try:
            self.train(fails_at=3)
        except KeyError:
            self.optimizer.close()

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
        Script.train_in_handler,
        Script.close_in_handler,
        Script.leave_open,
        lambda script: script.type("1 / 0", "script.train()"),
        lambda script: script.type("script.train()", "1 / 0"),
        lambda script: script.type("script.train(2)", "script.optimizer.close()", "script.train()"),
    ],
    ids=["trained in a handler", "closed in a handler", "never closed", "error before", "error after", "tried again"],
)
def test_an_exception_that_is_handled_is_no_crash(script: Callable[[Script], object], tmp_path: Path) -> None:
    said(tmp_path / "run", script)
    assert FINISHED in said(tmp_path / "run", Script.train)


@pytest.mark.parametrize(
    "script",
    [Script.fail_and_close, Script.fail_in_finally, lambda script: script.type("script.train(3)")],
    ids=["closed in a handler", "closed in finally", "at a prompt"],
)
def test_an_exception_that_leaves_the_loop_finishes_no_run(script: Callable[[Script], object], tmp_path: Path) -> None:
    said(tmp_path / "run", script)
    again = said(tmp_path / "run", Script.train)
    assert again.startswith("recovered to step 3 (")
    assert FINISHED not in again
    assert FINISHED in said(tmp_path / "run", Script.train)
