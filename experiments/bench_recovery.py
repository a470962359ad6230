"""Recovery: a redone step, a long log of small steps, and the commands that look into that run.

A redone step is `seconds_replay` of a recovery over its redone steps: reading, checksums, the update, comparing fingerprints.
The bare step is that of a plain optimizer whose gradients are there. Both take turns, a recovery and a block of bare steps,
then some computed steps. Every recovery is compared with the logged run, bit for bit.

For the long log, a child trains 1,218 parameters for 100,000 steps and dies by SIGKILL; a fresh process recovers a copy of the
run. `tranlogs status` and `tranlogs log --step` are timed from outside, in turns with their floor: a Python that imports numpy
and rich.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from harness import ask_child, measured_folder
from paired_timing import over, seconds, spread
from torch.optim import AdamW
from training_cases import Work, gpt, gradients_given, many, mlp

from tranlogs_torch import LoggedOptimizer

_CASES = (("MLP, 2.1 M", mlp, 60), ("GPT, 10.7 M", gpt, 24), ("400 small tensors", many, 100))  # steps
_FORMS: dict[str, dict[str, Any]] = {"default": {}, "fused": {"fused": True}}
_NEVER, _BARE, _COMPUTED = 10**9, 20, 2


def replay(*, quick: bool) -> dict[str, Any]:
    """Return redone over bare and over computed steps, for two kernel forms of AdamW."""
    found: dict[str, Any] = {"replays": []}
    torch.set_num_threads(1)
    for name, make, steps in _CASES[:1] if quick else _CASES:
        for form, options in _FORMS.items():
            with measured_folder() as folder:
                told = _redone(Path(folder) / "run", make, options, steps // 10 if quick else steps, rounds=2 if quick else 5)
            found["replays"].append({"case": name, "form": form, **told})
            print(f"  {name}, {form} kernels: {told}", flush=True)
    return found


def _redone(run: Path, make: Callable[[], Work], options: dict[str, Any], steps: int, *, rounds: int) -> dict[str, Any]:
    work = make()
    inner = AdamW(work.model.parameters(), lr=1e-3, **options)
    settings: dict[str, Any] = {"checkpoint_every": _NEVER, "durability": "process", "fingerprint": "full"}
    with LoggedOptimizer(inner, run, work.model, log="gradients", **settings) as optimizer:
        optimizer.recover()
        for _ in optimizer.steps(steps, stateless=True):
            gradients_given(work)
            optimizer.step()
    plain = make()
    bare = AdamW(plain.model.parameters(), lr=1e-3, **options)
    redone: list[float] = []
    alone: list[float] = []
    computed: list[float] = []
    for _ in range(rounds):
        redone.append(_recovered(run, make(), options, work.model))
        gradients_given(plain)
        alone.append(_median(bare.step, _BARE))
        computed.append(_median(partial(plain.compute, [bare]), _COMPUTED))
    return {
        "redone_ms": 1e3 * sorted(redone)[len(redone) // 2],
        "over_bare": over(redone, alone),
        "over_computed": over(redone, computed),
    }


def _recovered(run: Path, work: Work, options: dict[str, Any], trained: torch.nn.Module) -> float:
    """Return the seconds of a redone step in one recovery."""
    inner = AdamW(work.model.parameters(), lr=1e-3, **options)
    optimizer = LoggedOptimizer(inner, run, work.model, log="gradients", durability="process")
    report = optimizer.recover()
    optimizer.close()
    pairs = zip(work.model.parameters(), trained.parameters(), strict=True)
    if not report.exact or not all(torch.equal(a, b) for a, b in pairs):
        raise AssertionError(f"the recovered parameters are not those of the logged run: {report}")
    return report.seconds_replay / report.replayed


def _median(work: Callable[[], object], count: int) -> float:
    return sorted([seconds(work) for _ in range(count + 1)][1:])[count // 2]


# A long log.


def recovery(*, quick: bool) -> dict[str, Any]:
    """Return the seconds of recoveries by part, and those of the commands."""
    steps, rounds, copies = (500, 1, 1) if quick else (100_000, 7, 3)
    with measured_folder() as folder:
        run = Path(folder) / "run"
        if ask_child(_train, run, steps) is not None:
            raise SystemExit("the process that trains was to die by SIGKILL")
        found: dict[str, Any] = {"steps": steps, "run_bytes": sum(p.stat().st_blocks * 512 for p in run.rglob("*"))}
        found["commands"] = _commands(run, steps // 2, rounds)
        found["recoveries"] = []
        for _ in range(copies):
            shutil.copytree(run, Path(folder) / "copy")
            found["recoveries"].append(ask_child(_recover, Path(folder) / "copy"))
            shutil.rmtree(Path(folder) / "copy")
            print(f"  {found['run_bytes'] / 1e6:.0f} MB, recovery: {found['recoveries'][-1]}", flush=True)
    return found


def _commands(run: Path, step: int, rounds: int) -> dict[str, list[float]]:
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
            start = perf_counter()
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if i:  # the first one may write the bytecode
                found[name].append(perf_counter() - start)
            if done.returncode:
                raise SystemExit(f"{name} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    for name, taken in found.items():
        middle, low, high = spread(taken)
        print(f"  {name:36s} {middle:.2f} [{low:.2f}-{high:.2f}] s", flush=True)
    return found


def _small() -> torch.nn.Module:
    """1,218 parameters: what is measured is the number of records, not their size."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))


def _train(run: Path, steps: int) -> None:
    """Log all steps with the same gradients, and die."""
    model = _small()
    inner = AdamW(model.parameters(), lr=1e-3)
    optimizer = LoggedOptimizer(inner, run, model, log="gradients", checkpoint_every=_NEVER, durability="process")
    optimizer.recover()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    turns = optimizer.steps(_NEVER, stateless=True)
    for _ in range(steps):
        next(turns)
        optimizer.step()
    next(turns)
    os.kill(os.getpid(), signal.SIGKILL)


def _recover(run: Path) -> dict[str, float]:
    model = _small()
    inner = AdamW(model.parameters(), lr=1e-3)
    start = perf_counter()
    optimizer = LoggedOptimizer(inner, run, model, log="gradients")
    opened = perf_counter()
    report = optimizer.recover()
    end = perf_counter()
    optimizer.close()
    if not report.exact:
        raise AssertionError(f"recovery was not exact: {report}")
    return {"seconds": end - start, "open": opened - start, "replayed": report.replayed}
