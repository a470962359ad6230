"""Loops without `batches`, `epochs` or `steps`, and scripts that end without `close`."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.torch.lab import prove_exact
from tests.torch.scripts import own_loop
from tests.torch.small import logged, one_step, small


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
