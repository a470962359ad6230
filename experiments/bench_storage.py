"""Bytes on disk over time: the same training under three budgets, with a daemon beside each.

    python experiments/bench_storage.py [--quick] [--out FILE]

What is drawn is what lies on the disk, looked at from outside; the values below are those that the catalog keeps.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench_monitor import Daemon, bytes_below, open_toy
from harness import Child, measured_folder, take
from pictures import draw_storage

from tranlogs import EverySteps
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.log import preallocator
from tranlogs.retention import KeepAll
from tranlogs.retention.value_decay import read_evaluations, read_values

_BUDGETS = (16, 32, 48)  # MiB
_SIZES = (7, 1400, 11_200)  # 100 KB of gradients a step
_STEP_SECONDS, _CHECKPOINT_STEPS = 0.1, 40
_LOOK_SECONDS = 0.05
_SHOWN = 5  # one in so many of these is kept
_CURVES = 7  # segments whose values are drawn


def measure(*, quick: bool) -> dict[str, Any]:
    """Train and look: how far above its budget each run was at most, and all that the picture shows."""
    times: list[float] = []
    nbytes: dict[int, list[int]] = {budget: [] for budget in _BUDGETS}
    with measured_folder() as place, ExitStack() as stack:
        runs = {budget: Path(place) / str(budget) for budget in _BUDGETS}
        trainers = [Child(_train, run) for run in runs.values()]
        for trainer in trainers:
            trainer.receive()  # the run is there
        for budget, run in runs.items():
            options = ("--budget", f"{budget}MiB", "--interval", "0.5s", "--set", "life=20s")
            stack.callback(Daemon(run, *options).close)
        for trainer in trainers:  # all daemons are there: now
            trainer.pipe.send("go")
        start = time.time()
        while time.time() < start + (6.0 if quick else 60.0):
            times.append(time.time() - start)
            for budget, run in runs.items():
                nbytes[budget].append(bytes_below(run))
            time.sleep(_LOOK_SECONDS)
        curves = {budget: _curves(run, start) for budget, run in runs.items()}
        for trainer in trainers:
            trainer.pipe.send("end")
            trainer.join()
    found = {}
    for budget, course in nbytes.items():
        print(f"  budget {budget} MiB: at most {max(course) / MIB:.1f} MiB on disk, {course[-1] / MIB:.1f} MiB in the end")
        found[f"{budget} MiB"] = {
            "most_bytes": max(course),
            "last_bytes": course[-1],
            "seconds": [round(at, 2) for at in times[::_SHOWN]],
            "bytes": course[::_SHOWN],
            "values": curves[budget],
        }
    return found


def _curves(run: Path, start: float) -> list[dict[str, list[float]]]:
    """Return the values over time of some segments that were pruned, evenly chosen."""
    curves: dict[int, dict[str, list[float]]] = {}
    evaluations = read_evaluations(run / "rank0")
    for row in evaluations:
        for ordinal, value in read_values(row).as_dict().items():
            curve = curves.setdefault(ordinal, {"seconds": [], "values": []})
            curve["seconds"].append(round(row.at - start, 2))
            curve["values"].append(round(value, 4))
    last = round(evaluations[-1].at - start, 2)
    gone = [curve for _, curve in sorted(curves.items()) if curve["seconds"][-1] < last and len(curve["seconds"]) > 2]
    return gone[:: max(1, len(gone) // _CURVES)]


def _train(pipe: Any, run: Path) -> None:
    """Say that the run is there, wait for the word, and train a toy at an even pace until the next."""
    preallocator.SEGMENT_RECORDS_WANTED = 1  # small segments
    config = JournalConfig(segment_bytes=MIB)
    trainer = open_toy(run, sizes=_SIZES, config=config, policy=EverySteps(_CHECKPOINT_STEPS), retention=KeepAll())
    trainer.recover()
    pipe.send("ready")
    pipe.recv()
    start = time.monotonic()
    while not pipe.poll(max(0.0, start + trainer.journal.step * _STEP_SECONDS - time.monotonic())):
        trainer.train(trainer.journal.step + 1)
    trainer.journal.close()


if __name__ == "__main__":
    take(__doc__, "storage", measure, draw_storage)
