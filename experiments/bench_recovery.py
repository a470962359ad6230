"""What recovery takes as the log grows, and what its parts cost a step: fingerprints, and a tracked position in the data."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measuring import quartiles, shown
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tranlogs_torch import LoggedOptimizer

LENGTHS, LENGTHS_QUICK = (1_000, 100_000), (200, 1_000)


def small() -> nn.Module:
    """1,218 parameters: what is measured is the number of records, not their size."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 2))


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Seconds and memory of a recovery by length of log; microseconds a step by what is on."""
    found: dict[str, Any] = {}
    for steps in LENGTHS_QUICK if quick else LENGTHS:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TRANLOGS_BENCH_DIR")) as folder:
            run = Path(folder) / "run"
            _log(run, steps)
            size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
            told = subprocess.run([sys.executable, __file__, "--recover", str(run)], check=True, capture_output=True, text=True)
            seconds, replay, memory = map(float, told.stdout.split())
        found[str(steps)] = {"seconds": seconds, "seconds_replay": replay, "peak_bytes": memory, "run_bytes": size}
        print(f"  recovery over {steps:>7,} steps: {seconds:.2f} s, redoing {replay:.2f} s ({replay / steps * 1e6:.0f} us a "
              f"step); {memory / 1e6:.0f} MB more memory; run {size / 1e6:.0f} MB")  # fmt: skip
    found["step"] = _steps(200 if quick else 2000)
    return found


def _log(run: Path, steps: int) -> None:
    model = small()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with LoggedOptimizer(inner, run, model, checkpoint_every=10**9, durability="process") as optimizer:
        optimizer.recover()
        for _ in optimizer.steps(steps):
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            optimizer.step()


def _recover(run: Path) -> None:
    """In a fresh process, so that the peak of memory is its own."""
    model = small()
    optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3), run, model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    report = optimizer.recover()
    seconds = time.perf_counter() - start
    assert report.exact, report
    print(seconds, report.seconds_replay, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
    optimizer.close()


def _steps(count: int) -> dict[str, float]:
    """Median microseconds a turn of the same loop: not logged, with sampled and full fingerprints, over a tracked loader."""
    times: dict[str, list[float]] = {"plain": [], "sampled": [], "full": [], "full, loader": []}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TRANLOGS_BENCH_DIR")) as folder:
        for turn in range(5):  # in turns: the machine may have other work
            for name, values in times.items():
                values.append(_turn(Path(folder) / f"{name}-{turn}", name, count))
    for name, values in times.items():
        print(f"  a step, {name:12s} {shown([v * 1e6 for v in values], 0)} us")
    return {name: quartiles(values)[1] * 1e6 for name, values in times.items()}


def _turn(run: Path, name: str, count: int) -> float:
    model = small()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(4 * count, 16)), 4, shuffle=True)
    logged = None
    if name != "plain":
        fingerprint: Any = "sample" if name == "sampled" else "full"
        logged = optimizer = LoggedOptimizer(optimizer, run, model, durability="process", fingerprint=fingerprint)
        if "loader" in name:
            logged.track(loader=loader)
        logged.recover()
    batches = loader if logged is None or "loader" not in name else logged.batches(loader, until=count)
    if logged is not None and "loader" not in name:
        batches = (next(batches) for batches in [iter(loader)] for _ in logged.steps(count))
    start = time.perf_counter()
    for (x,) in batches:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - start
    if logged is not None:
        logged.close()
    return seconds / count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--recover", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.recover:
        _recover(arguments.recover)
    else:
        measure(quick=arguments.quick)
