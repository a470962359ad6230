"""Long runs, large tensors and many of them: memory, file handles, maps and disk stay flat, and after a kill all is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash import tally
from tests.support import campaign
from tranlogs.base.config import MIB

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("long_child.py")
GROWTH_MAX = {
    "memory": 4 * MIB,
    "objects": 50_000 if campaign.is_soak() else 2000,
    "handles": 4,
    "maps": 40,
    "threads": 1,
    "files": 8,
    "bytes": 12 * MIB,
}


def ask(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHILD), *map(str, words)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def trained_and_killed(run: Path, *size: int, writer: str = "direct") -> dict[str, Any]:
    """What a trainer said of itself before it was killed."""
    with ask("train", run, writer, *size) as trainer:
        assert trainer.stdout is not None
        line = trainer.stdout.readline()
        trainer.kill()
    assert line, f"the trainer ended with {trainer.returncode}"
    assert trainer.returncode == -signal.SIGKILL
    said: dict[str, Any] = json.loads(line)
    return said


def assert_all_is_there(run: Path, said: dict[str, Any], fault: str, *size: int) -> None:
    with ask("recover", run, "direct", *size) as process:
        out, _ = process.communicate(timeout=3600)
    assert process.returncode == 0
    found = json.loads(out)
    is_right = (found["step"], found["exact"], found["sum"]) == (said["committed"], True, said["sum"])
    tally.note(fault, losses=not is_right, seconds=found["seconds"])
    assert is_right, (found, said)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("writer", [campaign.in_soak("direct"), "thread"])
@pytest.mark.parametrize("steps", [1_000_000 if campaign.is_soak() else 1_500])
def test_a_long_run_of_tiny_steps_takes_no_more_at_its_end_than_at_its_beginning(
    memory_path: Path, steps: int, writer: str
) -> None:
    """And no queue grows without a bound: what a kill costs is little, however fast the steps come."""
    said = trained_and_killed(memory_path / "run", steps, 2, 5, writer=writer)
    taken = said["taken"]
    print(f"{steps / said['seconds']:.0f} steps a second", *taken, sep="\n")
    # What a process takes goes up and down with the records that the index does not have yet: the least of the last counts.
    grown = {what: min(one[what] for one in taken[-4:]) - max(one[what] for one in taken[:4]) for what in GROWTH_MAX}
    assert {what: more for what, more in grown.items() if more > GROWTH_MAX[what]} == {}
    assert said["at risk"] <= (0 if writer == "direct" else 300)
    assert_all_is_there(memory_path / "run", said, f"a long run: {steps:,} tiny steps, then SIGKILL", steps, 2, 5)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tensors", [50_000 if campaign.is_soak() else 1_000])
def test_many_parameters(memory_path: Path, tensors: int) -> None:
    said = trained_and_killed(memory_path / "run", 10, tensors, 3)
    print(*said["taken"], sep="\n")
    assert_all_is_there(memory_path / "run", said, f"a long run: {tensors:,} parameters, then SIGKILL", 10, tensors, 3)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("elements", [2**27 + 5 if campaign.is_soak() else 2**19])
def test_a_large_tensor(memory_path: Path, elements: int) -> None:
    """In a soak just above 1 GiB, which is more than one value of the log can hold."""
    said = trained_and_killed(memory_path / "run", 10 if not campaign.is_soak() else 3, 1, elements)
    what = f"a long run: a tensor of {elements * 8 >> 20:,} MiB, then SIGKILL"
    assert_all_is_there(memory_path / "run", said, what, 10 if not campaign.is_soak() else 3, 1, elements)
