"""Recovery over a long log of small steps, and what the command line takes to look into that run.

A child trains 1,218 parameters for 100,000 steps and dies by SIGKILL. Recovery is measured in fresh processes, each on a copy
of the dead run. `tranlogs status` and `tranlogs log --step` are timed from outside, in turns with a Python that only imports
numpy and rich: their floor.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from harness import ask_child, command_line, measured_folder
from paired_timing import spread
from torch import nn

from tranlogs_torch import LoggedOptimizer

STEPS, STEPS_QUICK = 100_000, 500
_COPIES, _SECONDS_MAX = 3, 60.0  # recoveries; after so many seconds no further one begins
_NEVER = 10**9


def small() -> nn.Module:
    """1,218 parameters: what is measured is the number of records, not their size."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 2))


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds of recovery by part, memory, and seconds of the commands."""
    steps = STEPS_QUICK if quick else STEPS
    with measured_folder() as folder:
        run = Path(folder) / "run"
        start = time.perf_counter()
        died = subprocess.run([sys.executable, __file__, "--train", str(run), str(steps)], check=False).returncode
        if died != -signal.SIGKILL:
            raise SystemExit(f"the training child ended with {died}, expected death by SIGKILL")
        found: dict[str, Any] = {
            "steps": steps,
            "seconds_trained": time.perf_counter() - start,
            "run_bytes": sum(p.stat().st_blocks * 512 for p in run.rglob("*")),
        }
        found["commands"] = _commands(run, steps // 2, rounds=1 if quick else 7)
        found["recoveries"] = _recoveries(run, Path(folder) / "copy", copies=1 if quick else _COPIES)
    print(f"  trained and killed in {found['seconds_trained']:.0f} s, {found['run_bytes'] / 1e6:.0f} MB on disk", flush=True)
    return found


def _recoveries(run: Path, copy: Path, *, copies: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    deadline = time.monotonic() + _SECONDS_MAX
    while len(found) < copies and (not found or time.monotonic() < deadline):
        shutil.copytree(run, copy)
        found.append(ask_child(__file__, "--recover", copy))
        shutil.rmtree(copy)
        print("  recovery: " + ", ".join(f"{key} {value:,.2f}" for key, value in found[-1].items()), flush=True)
    return found


def _commands(run: Path, step: int, *, rounds: int) -> dict[str, list[float]]:
    """Wall seconds of whole processes, whose bytecode is kept, as that of an installed package is."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    tranlogs = [sys.executable, "-m", "tranlogs"]
    commands = {
        "floor: Python with numpy and rich": [sys.executable, "-c", "import numpy, rich.console"],
        "tranlogs status": [*tranlogs, "status", str(run)],
        "tranlogs log --step": [*tranlogs, "log", str(run), "--step", str(step)],
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for i in range(rounds + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if i:  # the first one may write the bytecode
                found[name].append(time.perf_counter() - start)
            if done.returncode:
                raise SystemExit(f"{name} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    for name, seconds in found.items():
        middle, low, high = spread(seconds)
        print(f"  {name:36s} {middle:.2f} [{low:.2f}-{high:.2f}] s", flush=True)
    return found


# Child processes.


def _train(run: Path, steps: int) -> None:
    """Log all steps with the same gradients, and die."""
    model = small()
    optimizer = LoggedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        run,
        model,
        log="gradients",
        checkpoint_every=_NEVER,
        durability="process",
    )
    optimizer.recover()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    turns = optimizer.steps(_NEVER, stateless=True)
    for _ in range(steps):
        next(turns)
        optimizer.step()
    next(turns)
    os.kill(os.getpid(), signal.SIGKILL)


def _recover(run: Path) -> None:
    """In a process of its own, whose peak of memory is that of recovery."""
    model = small()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before, start = _peak(), time.perf_counter()
    optimizer = LoggedOptimizer(inner, run, model, log="gradients")
    opened = time.perf_counter()
    report = optimizer.recover()
    end = time.perf_counter()
    if not report.exact:
        raise AssertionError(f"recovery was not exact: {report}")
    print(
        json.dumps(
            {
                "seconds": end - start,
                "open": opened - start,
                "replay": report.seconds_replay,
                "rest": end - opened - report.seconds_replay,
                "replayed": report.replayed,
                "more_memory_bytes": _peak() - before,
            }
        )
    )
    optimizer.close()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--recover", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.recover:
        _recover(arguments.recover)
    elif arguments.train:
        _train(Path(arguments.train[0]), int(arguments.train[1]))
    else:
        measure(quick=arguments.quick)
