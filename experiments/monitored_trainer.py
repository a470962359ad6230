"""A trainer and a monitor in processes of their own, which go on and stop at the word of a benchmark.

python experiments/monitored_trainer.py MODEL RUN CHECKPOINT_EVERY     # trains for as many seconds as each line of stdin says
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tranlogs.retention.value_decay import read_evaluations

_MONITOR = [sys.executable, "-m", "tranlogs", "monitor"]
GPT_BATCH = 4
_TICK = os.sysconf("SC_CLK_TCK")
_SECONDS_MAX = 120.0  # for a process to be there
_QUIET_SECONDS, _QUIET_SHARE = 0.7, 0.1  # so long, a daemon took less of a processor: there is nothing to do


class Trainer:
    """Trains a model under a log, in a process of its own."""

    def __init__(self, model: str, run: Path, checkpoint_every: str) -> None:
        self.run = run
        self._process = subprocess.Popen(
            [sys.executable, __file__, model, str(run), checkpoint_every],
            text=True,
            env=os.environ | {"OMP_WAIT_POLICY": "passive"},  # a busy machine waits by sleeping
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def train(self, seconds: float) -> float:
        """Train for so long; the mean time of a step. What is still to be synced then is waited for, and not counted."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(seconds, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the trainer ended with {self._process.wait()}")
        steps, taken = json.loads(line)
        return float(taken / steps)


class Daemon:
    """`tranlogs monitor` on a run, that has evaluated it once."""

    def __init__(self, run: Path, options: list[str]) -> None:
        self._folder = run / "rank0"
        before = self._evaluations()
        self._process = subprocess.Popen([*_MONITOR, str(run), *options], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + _SECONDS_MAX
        while self._evaluations() == before:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise SystemExit(f"the monitor does not begin: {self._process.communicate()[1][-3000:]}")
            time.sleep(0.05)

    def _evaluations(self) -> list[int]:
        return [row.number for row in read_evaluations(self._folder)]

    def pause(self) -> None:
        """Stop it."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def wait_quiet(self) -> None:
        """Until it has caught up with what there was to do."""
        last = self.cpu_seconds()
        for _ in range(20):
            time.sleep(_QUIET_SECONDS)
            now = self.cpu_seconds()
            if now - last < _QUIET_SHARE * _QUIET_SECONDS:
                return
            last = now

    def cpu_seconds(self) -> float:
        """That it and its children have taken so far."""
        return sum(_cpu_seconds(pid) for pid in self._pids())

    def memory_bytes(self) -> int:
        """Resident."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    def close(self) -> None:
        """End it."""
        self.go_on()
        self._process.terminate()
        _, said = self._process.communicate()
        if self._process.returncode:
            raise SystemExit(f"the monitor ended with {self._process.returncode}: {said[-3000:]}")

    def _signal(self, number: int) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pids(self) -> list[int]:
        """It, and the processes that it has started."""
        found = [self._process.pid]
        for task in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(pid) for pid in task.read_text().split()]
        return found


def _cpu_seconds(pid: int) -> float:
    """Of a process and those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has ended, and its parent has its time
    return sum(int(ticks) for ticks in fields[11:15]) / _TICK


# The process that trains.


def train(which: str, run: str, checkpoint_every: str) -> None:
    """Steps for as many seconds as a line of stdin says; how many they were, and what they took, on stdout."""
    import torch

    from tranlogs_torch import LoggedOptimizer

    torch.set_num_threads(min(2, os.cpu_count() or 1))
    model, backward = _small() if which == "small" else _gpt(quick=which == "gpt-quick")
    every = int(checkpoint_every) if checkpoint_every.isdigit() else checkpoint_every
    inner = torch.optim.AdamW(model.parameters(), lr=3e-4)
    optimizer = LoggedOptimizer(inner, run, model, log="gradients", keep=1, fingerprint="full", checkpoint_every=every)
    optimizer.recover()
    turns = optimizer.steps(10**9)
    next(turns)
    for line in sys.stdin:
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < float(line) or steps < 2:
            backward()
            optimizer.step()
            optimizer.zero_grad()
            next(turns)
            steps += 1
        taken = time.perf_counter() - start
        optimizer.training_run.journal.wait_synced()
        optimizer.training_run.journal.wait_checkpoint()
        print(json.dumps([steps, taken]), flush=True)
    optimizer.close()


def _gpt(*, quick: bool) -> tuple[Any, Callable[[], None]]:
    from training_cases import batches, model_and_text

    model, windows = model_and_text(quick=quick)
    texts = batches(windows)

    def backward() -> None:
        text, following = next(texts)
        model.loss(text[:GPT_BATCH], following[:GPT_BATCH]).backward()

    return model, backward


def _small() -> tuple[Any, Callable[[], None]]:
    """What is measured with it is what a step costs whatever its size."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    samples = itertools.cycle([(torch.randn(256, 64), torch.randint(0, 10, (256,))) for _ in range(16)])

    def backward() -> None:
        x, y = next(samples)
        nn.functional.cross_entropy(model(x), y).backward()

    return model, backward


if __name__ == "__main__":
    train(*sys.argv[1:])
