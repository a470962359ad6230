"""Trains for long, or large, or with many tensors, and says what the process takes meanwhile.

python long_child.py train RUN WRITER STEPS TENSORS ELEMENTS   a line of JSON: what it took at each tenth of the way; it waits
python long_child.py recover RUN WRITER STEPS TENSORS ELEMENTS   a line of JSON: what came back
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy.random  # noqa: F401  (it is imported lazily)
import xxhash

from tests.support.toy import ToyTrainer, open_toy
from tranlogs.base.config import JournalConfig
from tranlogs.retention import EverySteps

TENTHS = 10


class Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def taken(run: Path) -> dict[str, int]:
    """What the process and its run take now. Memory is what is in use: what the system has given goes up and down."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Allocated
    allocated = mallinfo()
    files = [path.stat().st_size for path in run.rglob("*") if path.is_file()]
    return {
        "memory": allocated.uordblks + allocated.hblkhd,
        "objects": sys.getallocatedblocks(),
        "handles": len(os.listdir("/proc/self/fd")),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
        "threads": threading.active_count(),
        "files": len(files),
        "bytes": sum(files),
    }


def opened(run: Path, writer: Any, steps: int, tensors: int, elements: int) -> ToyTrainer:
    config = JournalConfig(durability="process", segment_bytes=1 << 20, writer=writer)
    return open_toy(run, sizes=(elements,) * tensors, config=config, policy=EverySteps(max(steps // 200, 2)))


def state_sum(trainer: ToyTrainer) -> int:
    """Of parameters, momenta and random numbers, without a copy of it all."""
    state, digest = trainer.state, xxhash.xxh3_64()
    for array in [*state.parameters.values(), *state.momenta.values(), state.order]:
        digest.update(array.data)
    digest.update(repr((state.rng.bit_generator.state, state.lr)).encode())
    return digest.intdigest()


def train(run: Path, steps: int, trainer: ToyTrainer) -> None:
    trainer.recover()
    found, at_risk, start = [], 0, time.monotonic()
    for tenth in range(1, TENTHS + 1):
        trainer.train(steps * tenth // TENTHS)
        at_risk = max(at_risk, trainer.journal.step - trainer.journal.committed)
        trainer.journal.wait_checkpoint()  # a snapshot that is being written has its memory
        found.append(taken(run))
    seconds = time.monotonic() - start
    assert not trainer.journal.is_suspended
    trainer.journal.wait_synced()
    said: dict[str, Any] = {
        "committed": trainer.journal.committed,
        "sum": state_sum(trainer),
        "taken": found,
        "seconds": seconds,
    }
    said["at risk"] = at_risk
    print(json.dumps(said), flush=True)
    sys.stdin.readline()


def recover(trainer: ToyTrainer, start: float) -> None:
    report = trainer.recover()
    seconds = time.monotonic() - start
    print(json.dumps({"step": report.step, "exact": report.exact, "sum": state_sum(trainer), "seconds": seconds}))
    trainer.journal.close()


def main(what: str, run: str, writer: str, steps: str, tensors: str, elements: str) -> None:
    start = time.monotonic()
    trainer = opened(Path(run), writer, int(steps), int(tensors), int(elements))
    if what == "train":
        train(Path(run), int(steps), trainer)
    else:
        recover(trainer, start)


if __name__ == "__main__":
    main(*sys.argv[1:])
