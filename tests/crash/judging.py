"""A child process that judges runs after a power cut (power_child.py), so that no run can end the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash import tally

CHILD = Path(__file__).with_name("power_child.py")

Judge = Callable[..., dict[str, Any]]  # run, the step where recovery must land at least, steps to train on -> verdict


@contextmanager
def judging(fault: str | None = None) -> Iterator[Judge]:
    """Start a judge. What it finds is taken down for `fault`, if that is given."""
    process = subprocess.Popen([sys.executable, str(CHILD), "judge"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def judge(run: Path, least: int, more: int = 20) -> dict[str, Any]:
        print(run, least, more, file=stdin, flush=True)
        line = stdout.readline()
        assert line, f"the judge ended with {process.wait()}"
        verdict: dict[str, Any] = json.loads(line)
        if fault is not None:
            is_lost = "failed" in verdict or bool(verdict["problems"])
            tally.note(fault, losses=is_lost, seconds=verdict.get("seconds", 0.0))
        return verdict

    with process:
        yield judge
