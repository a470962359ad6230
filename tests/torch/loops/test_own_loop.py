"""Loops without `batches`, `epochs` or `steps`, and scripts that end without `close`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.torch.lab import in_child, prove_exact
from tests.torch.scripts import own_loop
from tests.torch.small import logged, one_step, small
from tranlogs_torch.state.caveats import IMPLICIT


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


@pytest.mark.sampled(1)
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


def test_counter_that_a_turn_changes_before_its_forward_pass_is_told_where_to_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")

    def train(*, dies: bool) -> None:
        model = small()
        with logged(model, tmp_path / "run") as optimizer:
            state = optimizer.remember(number=0)
            optimizer.recover()
            while state.number < 9:
                state.number += 1
                one_step(model, optimizer, 1)
                if dies and state.number == 6:
                    os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / "report").write_text(str(optimizer.report))

    assert in_child(lambda: train(dies=True)) == -signal.SIGKILL
    assert in_child(lambda: train(dies=False)) == 0
    assert "Change state.number after optimizer.step(), or take turns" in (tmp_path / "report").read_text()
