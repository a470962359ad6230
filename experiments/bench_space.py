"""Disk and memory: bytes of a run beside its payload, the stall of a checkpoint over a memcpy, memory that logging needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import ask_child, measured_folder
from paired_timing import seconds
from training_cases import Work, gpt, gradients_given, mlp, tiny

from tranlogs.base.config import MIB
from tranlogs_torch import LoggedOptimizer

_CASES: tuple[tuple[str, Callable[[], Work], tuple[int, ...]], ...] = (
    ("tiny, 1.2 k parameters", tiny, (1, 10, 1000)),
    ("MLP, 2.1 M", mlp, (1, 10, 40)),
)
_SECTOR = 512
_BATCH = 16  # windows of a GPT


def disk(*, quick: bool) -> dict[str, Any]:
    """Return what young and closed runs take on the disk beyond their payload."""
    found: dict[str, Any] = {"young": []}
    with measured_folder() as folder:
        for name, make, ages in _CASES:
            for steps in ages[:2] if quick else ages:
                one = _young(Path(folder) / f"{name}-{steps}", make(), steps)
                found["young"].append({"case": name, **one})
                sizes = ", ".join(f"{key} {one[key] / MIB:.2f}" for key in ("payload", "young", "closed"))
                print(f"  {name}, {steps:,} steps, MiB: {sizes}", flush=True)
    return found


def _young(run: Path, work: Work, steps: int) -> dict[str, Any]:
    optimizer = LoggedOptimizer(work.optimizers[0], run, work.model, log="gradients", on_signal=None)
    optimizer.recover()
    for _ in optimizer.steps(steps):
        gradients_given(work)
        optimizer.step()
        optimizer.zero_grad()
    optimizer.training_run.journal.wait_synced()
    time.sleep(0.3)  # what is made ready behind the log is made
    young = _bytes_on_disk(run)
    optimizer.close()
    return {"steps": steps, "payload": steps * work.step_bytes, "young": young, "closed": _bytes_on_disk(run)}


def _bytes_on_disk(folder: Path) -> int:
    """Return what all files below a run's folder take, without those of its checkpoints."""
    files = (path for path in folder.rglob("*") if path.is_file() and "checkpoints" not in path.parts)
    return sum(path.stat().st_blocks * _SECTOR for path in files)


def checkpoint(*, quick: bool) -> dict[str, Any]:
    """Return the stall of a checkpoint over a memcpy, and the peaks of anonymous memory of a plain and of a logged run."""
    found = ask_child(_stall, quick)
    peaks = {f"{name}_bytes": ask_child(_peak, is_logged, quick) for name, is_logged in (("plain", False), ("logged", True))}
    print(f"  stall {found['stall_ms']:.1f} ms, {found['over_memcpy']['median']:.2f} of a memcpy of the state; peaks: {peaks}")
    return {**found, "memory": peaks}


def _stall(quick: bool) -> dict[str, Any]:
    torch.set_num_threads(2)
    work = gpt(_BATCH, quick=quick)
    with measured_folder() as folder:
        run = Path(folder) / "run"
        optimizer = LoggedOptimizer(work.optimizers[0], run, work.model, log="gradients", checkpoint_every=10**6)
        optimizer.recover()
        turns = optimizer.steps(10**9)
        stalls: list[float] = []
        copies: list[float] = []
        target: list[Any] = []
        training_run = optimizer.training_run

        def train() -> None:
            next(turns)
            work.compute([optimizer])

        def take_checkpoint() -> None:
            training_run.journal.checkpoint(training_run.state.snapshot(training_run.auxiliary.read()))

        def copy() -> None:
            for a, b in zip(target, source, strict=True):
                np.copyto(a, b)

        for _ in range(4 if quick else 10):  # both are measured right behind a training step: with the caches as they are then
            train()
            next(turns)
            stalls.append(seconds(take_checkpoint))
            training_run.journal.wait_checkpoint()
            train()
            tensors = [*work.model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]
            source = [t.detach().numpy() for t in tensors]
            target = target or [np.ones_like(a) for a in source]
            copies.append(seconds(copy))
        optimizer.close()
    return {
        "stall_ms": float(np.median(stalls[2:])) * 1e3,
        "over_memcpy": {"median": float(np.median(np.divide(stalls[2:], copies[2:])))},
        "state_bytes": sum(a.nbytes for a in source),
    }


def _peak(is_logged: bool, quick: bool) -> int:
    """Train, and return the peak of anonymous memory (the log's mapped file is page cache, and not counted)."""
    torch.set_num_threads(2)
    work, steps = gpt(_BATCH, quick=quick), 4 if quick else 12
    optimizer: Any = work.optimizers[0]
    peaks: list[int] = []
    with measured_folder() as folder:
        turns: Any = range(steps)
        if is_logged:
            optimizer = LoggedOptimizer(optimizer, Path(folder) / "run", work.model, log="gradients", checkpoint_every=3)
            optimizer.recover()
            turns = optimizer.steps(steps)
        optimizer.register_step_pre_hook(lambda *_: peaks.append(_anonymous_bytes()))
        optimizer.register_step_post_hook(lambda *_: peaks.append(_anonymous_bytes()))
        for _ in turns:
            work.compute([optimizer])
        if is_logged:
            optimizer.close()
    return max(peaks)


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
