"""Bytes on disk of a young and of a closed run, and bytes that the device writes in steady state.

Young: all that lies below the run's folder, over the logged payload and two segments of the run's own size.
Closed: the same run after `close()`, without its checkpoints, over the payload.
Written: over some seconds of appends with recycled log files, the sectors that /sys/dev/block/MAJOR:MINOR/stat counts, less
what the device writes by itself in a quiet interval; and beside it the bytes that /proc/self/io counts, which are pages
dirtied by this process whatever device they are for. Both start and end synced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_append import INTERVAL, Appends, gradients
from figures import Figure
from harness import command_line, measured_folder
from training_cases import Work, gradients_given, mlp, tiny

from tranlogs.base.config import MIB
from tranlogs_torch import LoggedOptimizer

_CASES: tuple[tuple[str, Callable[[], Work], int, tuple[int, ...]], ...] = (
    ("tiny, 1.2 k parameters", tiny, 16 * MIB, (1, 10, 1000)),
    ("MLP, 2.1 M", mlp, 64 * MIB, (1, 10, 40)),
)
_SECTOR = 512
_QUIET_SECONDS, _QUIET_SECONDS_QUICK = 3.0, 0.2


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Disk of young and closed runs; writes of the device over the payload."""
    found: dict[str, Any] = {"figures": [], "young": []}
    with measured_folder() as folder:
        for name, make, segment, ages in _CASES:
            told = [_young(Path(folder) / f"{name}-{age}", make(), segment, age) for age in (ages[:2] if quick else ages)]
            found["young"] += [{"case": name, **one} for one in told]
            for one in told:
                sizes = ", ".join(f"{key} {one[key] / MIB:.2f} MiB" for key in ("payload", "segment_bytes", "young", "closed"))
                print(f"  {name}, {one['steps']:,} steps: {sizes}", flush=True)
            young = max(one["young"] / (one["payload"] + 2 * segment) for one in told)
            closed, steps = told[-1]["closed"] / told[-1]["payload"], told[-1]["steps"]
            for case, what, ratio, goal in (
                (f"disk of a young run, {name}", "bytes over payload and two segments", young, 1.0),
                (f"disk of a closed run, {name}, {steps:,} steps", "bytes over payload", closed, None),
            ):
                found["figures"].append(Figure.of(case, what, (ratio, ratio, ratio), "", goal).as_dict())
        found["writes"] = [_writes(Path(folder) / f"writes-{i}", quick=quick) for i in range(1 if quick else 3)]
    for key, meter in (("device", "device"), ("process", "pages dirtied")):
        ratios = sorted(one[key] / one["payload"] for one in found["writes"] if one[key] is not None)
        if ratios:
            middle = ratios[len(ratios) // 2]
            found["figures"].append(
                Figure.of(
                    f"bytes written in steady state, {meter}", "over payload", (middle, ratios[0], ratios[-1]), "", 1.15
                ).as_dict()
            )
            shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
            print(f"  written in steady state, {meter}: {shown} of the payload", flush=True)
        else:
            print(f"  written in steady state, {meter}: not counted on this disk", flush=True)
    return found


def _young(run: Path, work: Work, segment_bytes: int, steps: int) -> dict[str, Any]:
    optimizer = LoggedOptimizer(work.optimizers[0], run, work.model, segment_bytes=segment_bytes, on_signal=None)
    optimizer.recover()
    turns = optimizer.steps(steps)
    for _ in turns:
        gradients_given(work)
        optimizer.step()
    optimizer.training_run.journal.wait_synced()
    time.sleep(0.3)  # what is made ready behind the log is made
    young = _on_disk(run)
    optimizer.close()
    sizes = sorted(
        (
            (p.stat().st_size, p.stat().st_blocks * _SECTOR, p.relative_to(run).as_posix())
            for p in run.rglob("*")
            if p.is_file()
        ),
        reverse=True,
    )[:6]
    return {
        "steps": steps,
        "payload": steps * work.step_bytes,
        "segment_bytes": segment_bytes,
        "young": young,
        "closed": _on_disk(run, without="checkpoints"),
        "largest_files_closed": sizes,
    }


def _on_disk(folder: Path, *, without: str = "") -> int:
    """What all files below a folder take, those below sub-folders of one name left out."""
    files = (path for path in folder.rglob("*") if path.is_file() and without not in path.parts)
    return sum(path.stat().st_blocks * _SECTOR for path in files)


def _writes(run: Path, *, quick: bool) -> dict[str, Any]:
    steps, quiet_seconds = (20, _QUIET_SECONDS_QUICK) if quick else (150, _QUIET_SECONDS)
    tensors = gradients()
    appends = Appends(run, "machine", tensors)
    for _ in range(4 * INTERVAL):
        appends.step()
        appends.settle_checkpoint()
    appends.journal.wait_synced()
    os.sync()
    device = _device_stat(run)
    quiet = _rate(device, quiet_seconds)
    before, start = (_written(device), _dirtied()), time.monotonic()
    for _ in range(steps):
        appends.step()
        appends.settle_checkpoint()
        time.sleep(0.010)
    appends.journal.wait_synced()
    os.sync()
    seconds = time.monotonic() - start
    after = _written(device), _dirtied()
    appends.journal.close()
    payload = steps * sum(tensor.nbytes for tensor in tensors)
    on_device = None if before[0] is None or after[0] is None else after[0] - before[0] - quiet * seconds
    return {
        "payload": payload,
        "device": on_device,
        "process": (after[1] - before[1]) or None,
        "seconds": seconds,
        "quiet_bytes_per_second": quiet,
        "device_stat": None if device is None else str(device),
    }


def _device_stat(folder: Path) -> Path | None:
    """The statistics of the block device below a folder; None where it is not on one (tmpfs, overlay)."""
    number = folder.stat().st_dev
    path = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    return path if path.exists() else None


def _written(stat: Path | None) -> int | None:
    return None if stat is None else int(stat.read_text().split()[6]) * _SECTOR


def _rate(stat: Path | None, seconds: float) -> float:
    """Bytes a second that the device writes while this process does nothing."""
    before = _written(stat)
    time.sleep(seconds)
    after = _written(stat)
    return 0.0 if before is None or after is None else (after - before) / seconds


def _dirtied() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("write_bytes")).split()[1])


if __name__ == "__main__":
    measure(quick=command_line(__doc__).parse_args().quick)
