"""An append of 8.4 MB to the log over a memcpy of the same bytes, on log files that are used again and on fresh ones.

Each turn does both, then sleeps 10 ms, as a training step would pass; with durability "machine" the log is synced meanwhile.
An append is all that a step does in the journal: begin, commit, boundary. Beside it the same bytes are written to a plain
file, first on fresh blocks and then again: what the first writing costs more is the machine's, and no log's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
from figures import Figure
from harness import command_line, measured_folder
from paired_timing import over, p99

from tranlogs import KeepLatest
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.types import Array, dense
from tranlogs.checkpoints import Snapshot
from tranlogs.journal import Journal
from tranlogs.log.layout import Payload

SHAPES = ((1024, 256), (1024,), (1024, 1024), (1024,), (768, 1024), (768,), (10, 768), (10,))  # of an MLP: 8.4 MB
SEGMENT_BYTES, INTERVAL = 128 * MIB, 15  # an interval fills a segment
_PAUSE_SECONDS = 0.010
_GOALS = {"mean": 2.7, "p99": 7.0}
PLAIN_FILE = "(plain file)"


class Appends:
    """A journal that takes the same tensors at each step, with a checkpoint of nothing at intervals."""

    def __init__(self, run: Path, durability: Literal["process", "machine"], tensors: list[np.ndarray[Any, Any]]) -> None:
        config = JournalConfig(durability=durability, segment_bytes=SEGMENT_BYTES)
        self.journal = Journal.open(run, framework="none", config=config, retention=KeepLatest(1))
        self._arrays: list[tuple[str, Array]] = [(f"grad/{i}", dense(tensor)) for i, tensor in enumerate(tensors)]
        self._count = 0

    def step(self) -> None:
        """Append one record and its boundary."""
        self._count += 1
        self.journal.commit_step(self.journal.begin_step(Payload.of(self._arrays)), {})
        self.journal.boundary({}, lambda: Snapshot({}, {}), checkpoint=self._count % INTERVAL == 0)

    def settle_checkpoint(self) -> None:
        """Wait for a checkpoint that the last step took."""
        if self._count % INTERVAL == 0:
            self.journal.wait_checkpoint()


def gradients() -> list[np.ndarray[Any, Any]]:
    """8.4 MB of noise in the shapes of an MLP."""
    chance = np.random.default_rng(0)
    return [chance.standard_normal(shape, np.float32) for shape in SHAPES]


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Mean and p99 of an append over the median memcpy, by durability and kind of file."""
    tensors = gradients()
    found: dict[str, Any] = {"bytes_per_record": sum(t.nbytes for t in tensors), "figures": [], "appends": []}
    for durability in ("machine", "process", PLAIN_FILE):
        with measured_folder() as folder:
            if durability == PLAIN_FILE:
                seconds = _plain_file(Path(folder) / "plain", tensors, 15 if quick else 60)
            else:
                seconds = _turns(Path(folder) / "run", durability, tensors, 60 if quick else 450)  # type: ignore[arg-type]
        for files, (append, copy) in seconds.items():
            statistics = {"median": np.median, "mean": np.mean, "p99": p99}
            ratios = {name: over(append, copy, statistic) for name, statistic in statistics.items()}
            found["appends"].append(
                {
                    "durability": durability,
                    "files": files,
                    "count": len(append),
                    "memcpy_ms": float(np.median(copy)) * 1e3,
                    **ratios,
                }
            )
            if files == "recycled" and durability != PLAIN_FILE:
                found["figures"] += [
                    Figure.of(
                        f"append of 8.4 MB, {durability}, recycled files", f"{name} over memcpy", ratios[name], "", goal
                    ).as_dict()
                    for name, goal in _GOALS.items()
                ]
            shown = "  ".join(f"{name} {value:.2f} [{low:.2f}-{high:.2f}]" for name, (value, low, high) in ratios.items())
            print(f"  {durability:8s} {files:9s} append over memcpy ({np.median(copy) * 1e3:.2f} ms): {shown}", flush=True)
    return found


def _turns(
    run: Path, durability: Literal["process", "machine"], tensors: list[Any], count: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds of appends and of copies: fresh files during the first interval, recycled from the fourth checkpoint on."""
    target = [np.ones_like(tensor) for tensor in tensors]
    found: dict[str, tuple[list[float], list[float]]] = {"fresh": ([], []), "recycled": ([], [])}
    appends = Appends(run, durability, tensors)
    for i in range(count):
        start = time.perf_counter()
        for into, tensor in zip(target, tensors, strict=True):
            np.copyto(into, tensor)
        middle = time.perf_counter()
        appends.step()
        end = time.perf_counter()
        appends.settle_checkpoint()
        files = "fresh" if 1 <= i < INTERVAL - 1 else "recycled" if i >= min(4 * INTERVAL, count // 2) else None
        if files is not None and (i + 1) % INTERVAL:  # a step that takes a checkpoint is measured by bench_checkpoint.py
            found[files][0].append(end - middle)
            found[files][1].append(middle - start)
        time.sleep(_PAUSE_SECONDS)
    appends.journal.close()
    return found


def _plain_file(path: Path, tensors: list[Any], count: int) -> dict[str, tuple[list[float], list[float]]]:
    """Seconds of writes to a plain file, and of copies: on fresh blocks, and of the same file again."""
    target = [np.ones_like(tensor) for tensor in tensors]
    views = [tensor.reshape(-1).view(np.uint8).data for tensor in tensors]
    nbytes = sum(view.nbytes for view in views)
    found: dict[str, tuple[list[float], list[float]]] = {"fresh": ([], []), "recycled": ([], [])}
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, nbytes * count)
    for files in found:
        os.fdatasync(fd)
        for i in range(count):
            start = time.perf_counter()
            for into, tensor in zip(target, tensors, strict=True):
                np.copyto(into, tensor)
            middle = time.perf_counter()
            written = os.pwritev(fd, views, i * nbytes)
            end = time.perf_counter()
            assert written == nbytes, "the disk is full"
            found[files][0].append(end - middle)
            found[files][1].append(middle - start)
            time.sleep(_PAUSE_SECONDS)
    os.close(fd)
    return found


if __name__ == "__main__":
    measure(quick=command_line(__doc__).parse_args().quick)
