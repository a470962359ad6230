"""The examples do what they say: killed and started again, they end with the bits and the lines of one that was not killed."""

from __future__ import annotations

import os
import pickle
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sklearn.datasets  # noqa: F401  # imported once, and not by each child
import torch
import torch._dynamo  # the first step imports it, which would take every life a second
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.support import campaign
from tests.support.examples import EXAMPLES, Killer, printed, run_example, shortened
from tests.torch.lab import contents, differences, flatten, in_child
from tranlogs.training import Remembered
from tranlogs_torch import LoggedOptimizer

KINDS = (torch.nn.Module, LoggedOptimizer, Remembered, torch.optim.lr_scheduler.LRScheduler)
SHORT: dict[str, dict[str, int]] = {
    "nanogpt_style": {"STEPS": 40},
    "digits_epochs": {"EPOCHS": 2},
    "gan": {"BATCHES": 160},
    "actor_critic": {"EPISODES": 30},
    "language_model": {"EPOCHS": 2},
}


def live(file: Path, folder: Path, steps: int | None = None, calls: int = 0, *, rechecks: bool = True) -> int:
    """Run an example in a child; return its exit status. What it came to is in `result` if it lived to its end."""
    folder.mkdir(exist_ok=True)

    def work() -> None:
        os.environ["TRANLOGS_RECHECK"] = str(int(rechecks))
        killer = Killer(steps, calls)
        register_optimizer_step_post_hook(lambda *_: killer.count_step())
        names = run_example(file, folder)
        kept = {name: contents(thing) for name, thing in names.items() if isinstance(thing, KINDS)}
        report = next(thing for thing in names.values() if isinstance(thing, LoggedOptimizer)).report
        result = {
            "outcome": flatten({**kept, "random": torch.get_rng_state()}),
            "exact": report.exact,
            "notes": report.notes,
            "recheck": report.recheck,
            "steps": killer.steps,
        }
        (folder / "result").write_bytes(pickle.dumps(result))

    return in_child(work)


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = pickle.loads((folder / "result").read_bytes())
    return found


def with_plain_form(text: str) -> str:
    """Return an example with a plain namespace, or with a plain `enumerate` where it has a counter of batches."""
    counted = re.sub(r"in (optimizer_d\.batches\(.*), enumerate=True\):", r"in enumerate(\1)):", text)
    if counted != text:
        return counted
    text, count = re.subn(r"optimizer\.remember\(", "SimpleNamespace(", text)
    assert count == 1
    return text.replace("import torch\n", "from types import SimpleNamespace\n\nimport torch\n", 1)


@pytest.mark.sampled(2)
@pytest.mark.crash
@pytest.mark.parametrize("name", SHORT)
def test_a_killed_example_ends_with_the_bits_and_the_lines_of_its_twin(name: str, tmp_path: Path) -> None:
    file = shortened(name, tmp_path, **SHORT[name])
    assert live(file, tmp_path / "twin") == 0
    twin = result_of(tmp_path / "twin")
    for number in range(campaign.rounds(1)):
        seed = campaign.seed() + number
        draw, folder = random.Random(f"{name} {seed}"), tmp_path / f"killed{number}"
        for _ in range(2):
            steps, calls = draw.randint(2, twin["steps"] // 3), int(3_000 ** draw.random())
            status = live(file, folder, steps, calls)
            assert status == -signal.SIGKILL, f"seed {seed}: it was to die after {steps} steps; its exit status is {status}"
        assert live(file, folder) == 0, f"seed {seed}"
        last = result_of(folder)
        assert differences(last["outcome"], twin["outcome"]) == [], f"seed {seed}"
        assert printed(folder) == printed(tmp_path / "twin"), f"seed {seed}"
        assert (last["exact"], last["recheck"], last["notes"]) == (True, "equal", ()), f"seed {seed}"
        assert last["steps"] < twin["steps"], f"seed {seed}: it began anew"
    forgetful = tmp_path / "forgetful.py"
    forgetful.write_text(with_plain_form(file.read_text()))
    assert live(forgetful, tmp_path / "forgetful", twin["steps"] // 3 + 1, rechecks=False) == -signal.SIGKILL
    assert live(forgetful, tmp_path / "forgetful", rechecks=False) == 0
    assert differences(result_of(tmp_path / "forgetful")["outcome"], twin["outcome"]), "the plain form does as well"


@pytest.mark.crash
def test_minimal_example_goes_on_after_sigkill(tmp_path: Path) -> None:
    command = [sys.executable, "-u", str(EXAMPLES / "pytorch_minimal.py")]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # two would wait for each other on a busy machine
    with subprocess.Popen(command, cwd=tmp_path, env=one_thread, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        told = [line for _, line in zip(range(2), first.stdout, strict=False)]
        first.kill()
    forecast = r"fresh run: step 0 \(about .* of log a step; next checkpoint after about [\d,]+ steps \(.* of log\); .*\)\n"
    assert re.fullmatch(forecast, told[0]), told[0]
    assert told[1].startswith("batch 100: loss ")
    with subprocess.Popen(command, cwd=tmp_path, env=one_thread, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None
        line = second.stdout.readline()
        second.kill()
    found = re.match(r"recovered to step (\d+) \(.* bit-exact\)", line)
    assert found is not None, line
    assert int(found[1]) >= 99  # the 100th batch told of itself before its unit was complete
