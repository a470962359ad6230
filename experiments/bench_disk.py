"""Bytes on disk of a young and of a closed run, without its checkpoints, beside the logged payload."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import command_line, measured_folder
from training_cases import Work, gradients_given, mlp, tiny

from tranlogs.base.config import MIB
from tranlogs_torch import LoggedOptimizer

_CASES: tuple[tuple[str, Callable[[], Work], tuple[int, ...]], ...] = (
    ("tiny, 1.2 k parameters", tiny, (1, 10, 1000)),
    ("MLP, 2.1 M", mlp, (1, 10, 40)),
)
_SECTOR = 512


def measure(*, quick: bool = False) -> dict[str, Any]:
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


if __name__ == "__main__":
    measure(quick=command_line(__doc__).parse_args().quick)
