"""Bytes on disk over time: the same training under three budgets, with a daemon beside each.

    python experiments/bench_storage.py [--quick] [--out FILE]
    python experiments/bench_storage.py --train RUN     # trains the toy, at an even pace, until its stdin is closed

What is drawn is what lies on the disk, looked at from outside; the values below are those that the catalog keeps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import Circumstances, command_line, measured_folder, write_results
from monitored_trainer import Daemon
from support import open_toy

from tranlogs import EverySteps
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.log import preallocator
from tranlogs.retention import KeepAll
from tranlogs.retention.prune import Budget
from tranlogs.retention.value_decay import EvaluationRow, read_evaluations, read_values

_BUDGETS = (16, 32, 48)  # MiB
_SIZES = (7, 1400, 11_200)  # 100 KB of gradients a step
_STEP_SECONDS, _CHECKPOINT_STEPS = 0.1, 40
_LOOK_SECONDS = 0.05
_SHOWN = 5  # one in so many of these is kept
_CURVES = 7  # segments whose values are drawn
_INK, _SHADES = "#1f2937", ("#93c5fd", "#3b82f6", "#1e3a8a")


@dataclass(slots=True)
class Course:
    """What became of one run.

    Attributes:
        budget: in MiB.
        times: seconds since the beginning.
        nbytes: on disk, at each of them.
        evaluations: of its daemon.
    """

    budget: int
    times: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    evaluations: list[EvaluationRow] = field(default_factory=list)


def bytes_below(folder: Path) -> int:
    """What the segments and checkpoints of a journal take on disk."""
    total = 0
    for kind in ("log", "checkpoints"):
        for place, _, names in os.walk(folder / kind):
            for name in names:
                try:
                    total += os.stat(os.path.join(place, name)).st_blocks * 512
                except FileNotFoundError:  # it has just gone
                    continue
    return total


def measure(*, quick: bool = False, picture: Path | None = None) -> dict[str, Any]:
    """Train, look, and draw; how far above its budget each run was at most."""
    seconds = 6.0 if quick else 60.0
    with measured_folder() as place, ExitStack() as stack:
        courses = {Path(place) / str(budget): Course(budget) for budget in _BUDGETS}
        trainers = [stack.enter_context(_training(run)) for run in courses]
        for run, course in courses.items():
            options = ["--budget", f"{course.budget}MiB", "--interval", "0.5s", "--set", "life=20s"]
            stack.callback(Daemon(run, options).close)
        for trainer in trainers:  # all daemons are there: now
            assert trainer.stdin is not None
            trainer.stdin.write(b"\n")
            trainer.stdin.flush()
        start = time.time()
        while time.time() < start + seconds:
            for run, course in courses.items():
                course.times.append(time.time() - start)
                course.nbytes.append(bytes_below(run / "rank0"))
            time.sleep(_LOOK_SECONDS)
        for run, course in courses.items():
            course.evaluations = read_evaluations(run / "rank0")
    if picture is not None:
        draw(picture, list(courses.values()), start)
        print(f"  {picture}")
    found = {}
    for course in courses.values():
        most = max(course.nbytes) / MIB
        found[f"{course.budget} MiB"] = {
            "most_bytes": max(course.nbytes),
            "last_bytes": course.nbytes[-1],
            **_series(course, start),
        }
        print(f"  budget {course.budget} MiB: at most {most:.1f} MiB on disk, {course.nbytes[-1] / MIB:.1f} MiB in the end")
    return found


def _series(course: Course, start: float) -> dict[str, Any]:
    """All that the picture shows, and how often the daemon looked: seconds since the beginning, bytes, values."""
    looks = [row.at - start for row in course.evaluations if row.at > start]
    curves = [
        {"seconds": [round(at, 2) for at in times], "values": [round(value, 4) for value in values]}
        for times, values in _curves(course, start)
    ]
    between = [round(b - a, 2) for a, b in pairwise(looks)]
    seconds = [round(at, 2) for at in course.times[::_SHOWN]]
    return {
        "looks": len(looks),
        "seconds_between_looks": between,
        "seconds": seconds,
        "bytes": course.nbytes[::_SHOWN],
        "values": curves,
    }


def _training(run: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, __file__, "--train", str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # the run is there
    return process


def draw(path: Path, courses: Sequence[Course], start: float) -> None:
    """Write the PNG."""
    from matplotlib.figure import Figure  # without pyplot: no screen, no global state

    figure = Figure(figsize=(9, 6.4), dpi=160, layout="constrained")
    space, values = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    figure.suptitle(
        "One training under three budgets: what lies on disk, and what segments are worth",
        x=0.01,
        ha="left",
        fontsize=12,
        color=_INK,
    )
    for axes in (space, values):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.margins(x=0.01)
    shares, end = Budget(), courses[0].times[-1]
    for course, shade in zip(courses, _SHADES):
        space.plot(course.times, [n / MIB for n in course.nbytes], color=shade, lw=1.6)
        space.axhspan(shares.low * course.budget, shares.high * course.budget, color=shade, alpha=0.1, lw=0)
        for share, name in ((shares.high, "high"), (shares.low, "low")):
            space.axhline(share * course.budget, color=shade, lw=0.8, ls=(0, (4, 3)))
            space.text(end, share * course.budget, f" {name}", color=shade, fontsize=8, va="center")
        space.text(
            end * 1.04,
            course.budget * (shares.high + shares.low) / 2,
            f"{course.budget} MiB",
            color=shade,
            fontsize=9,
            va="center",
        )
    space.set_ylim(bottom=0)
    space.set_xlim(0, end * 1.1)
    space.set_ylabel("MiB of segments and checkpoints", color=_INK)
    course = courses[len(courses) // 2]
    for at, worth in _curves(course, start):
        values.plot(at, worth, color=_INK, lw=1.2)
        values.plot(at[-1], worth[-1], color=_INK, marker="x", ms=5)
    values.set_ylim(0, 1.02)
    values.set_ylabel("value", color=_INK)
    values.set_xlabel(f"seconds; below, some segments under {course.budget} MiB until they are pruned (x)", color=_INK)
    figure.savefig(path)


def _curves(course: Course, start: float) -> list[tuple[list[float], list[float]]]:
    """Values over time of some segments that were pruned, evenly chosen."""
    curves: dict[int, tuple[list[float], list[float]]] = {}
    for row in course.evaluations:
        worth = read_values(row)
        for ordinal, value in worth.as_dict().items():
            at, values = curves.setdefault(ordinal, ([], []))
            at.append(row.at - start)
            values.append(value)
    last = course.evaluations[-1].at - start
    gone = [curve for _, curve in sorted(curves.items()) if curve[0][-1] < last and len(curve[0]) > 2]
    return gone[:: max(1, len(gone) // _CURVES)]


# The process that trains.


def train(run: str) -> None:
    """Says that the run is there, waits for a line, and trains until its stdin ends."""
    preallocator.SEGMENT_RECORDS_WANTED = 1  # small segments
    config = JournalConfig(segment_bytes=MIB)
    trainer = open_toy(run, sizes=_SIZES, config=config, policy=EverySteps(_CHECKPOINT_STEPS), retention=KeepAll())
    trainer.recover()
    print("ready", flush=True)
    is_over = threading.Event()
    if sys.stdin.readline():
        threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
        start = time.monotonic()
        while not is_over.wait(max(0.0, start + trainer.journal.step * _STEP_SECONDS - time.monotonic())):
            trainer.train(trainer.journal.step + 1)
    trainer.journal.close()


def main() -> None:
    parser = command_line(__doc__, "seconds instead of a minute: checks the script, not the claim", out="storage")
    parser.add_argument("--train", metavar="RUN", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train)
        return
    begun = Circumstances()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results = measure(quick=arguments.quick, picture=arguments.out.with_suffix(".png"))
    write_results(arguments.out, results, begun)


if __name__ == "__main__":
    main()
