"""The unit that is computed again after a crash: what its comparison with the log costs, over the unit that is computed.

A child trains some steps and dies by SIGKILL. Another process recovers copies of the dead run, and lets the loop compute one
unit of each: in turn the newest one again, compared; and one of a run that is closed behind the recovery, so that nothing but
the unit is computed. Figures are medians over neighbours:

- the time that the training thread was in the comparison (`report.seconds_recheck`), added to the unit that is computed;
- the processor time of the training thread for the unit with all that TranLogs does in it, which is what it does in the first
  unit of any process, and naming the loop's variables. Other programs on the machine do not count in it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import training_cases
from figures import Figure
from harness import ask_child, command_line, measured_folder, take
from paired_timing import spread

from tranlogs_torch import LoggedOptimizer

CASES = {  # the batch does not depend on how many there were before
    "MLP 2.1 M": training_cases.mlp,
    "400 small tensors": training_cases.many,
    "GPT 10.7 M": partial(training_cases.gpt, repeats=True),
}
_STEPS, _PAIRS, _WARM_STEPS = 12, 9, 2
_WHAT = {
    "compared": "a unit computed again and compared, over the unit",
    "whole": "the same, with all else of a first unit, processor time",
}


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Return the ratio of a unit that is computed and compared to one that is computed only, by case."""
    figures = []
    for name in list(CASES)[:1] if quick else CASES:
        with measured_folder() as folder:
            run, copy = Path(folder) / "run", Path(folder) / "copy"
            died = subprocess.run([sys.executable, __file__, "--train", name, str(run)], check=False).returncode
            if died != -signal.SIGKILL:
                raise SystemExit(f"the training child ended with {died}, expected death by SIGKILL")
            ratios = ask_child(__file__, "--resume", name, run, copy, 2 if quick else _PAIRS)
        for what, values in ratios.items():
            goals = (1.05,) if what == "compared" else ()
            figures.append(Figure.of(name, _WHAT[what], spread(values), "", *goals))
            print(f"  {name}, {what}: {figures[-1].shown}", flush=True)
    return {"figures": [figure.as_dict() for figure in figures]}


def _train(name: str, run: Path) -> None:
    work = CASES[name]()
    optimizer = LoggedOptimizer(work.optimizers[0], run, work.model)
    optimizer.recover()
    for step in optimizer.steps(10**9, stateless=True):
        work.compute([optimizer])
        if step == _STEPS:
            os.kill(os.getpid(), signal.SIGKILL)


def _resume(name: str, run: Path, copy: Path, pairs: int) -> None:
    warm = CASES[name]()
    for _ in range(_WARM_STEPS):
        warm.compute(warm.optimizers)
    ratios: dict[str, list[float]] = {what: [] for what in _WHAT}
    for _ in range(pairs):
        again, plain = (_time_unit(name, run, copy, rechecks=rechecks) for rechecks in (True, False))
        ratios["compared"].append(1 + again["compared"] / plain["wall"])
        ratios["whole"].append(again["thread"] / plain["thread"])
    print(json.dumps(ratios))


def _time_unit(name: str, run: Path, copy: Path, *, rechecks: bool) -> dict[str, float]:
    """Recover a copy of the run; return the times of its first unit."""
    shutil.copytree(run, copy)
    torch.manual_seed(1)
    work = CASES[name]()
    optimizer = LoggedOptimizer(work.optimizers[0], copy, work.model, recheck=rechecks)
    optimizer.recover()
    if rechecks:
        for number, _ in enumerate(optimizer.steps(10**9, stateless=True)):
            if number == 1:
                break
            start = _now()
            work.compute([optimizer])
    else:
        optimizer.close()
        start = _now()
        work.compute(work.optimizers)
    end = _now()
    optimizer.close()
    shutil.rmtree(copy)
    if rechecks and optimizer.report.recheck != "equal":
        raise AssertionError(f"the unit was not proven: {optimizer.report}")
    return {"wall": end[0] - start[0], "thread": end[1] - start[1], "compared": optimizer.report.seconds_recheck}


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        _train(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1:2] == ["--resume"]:
        _resume(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
    else:
        take(command_line(__doc__, out="recheck"), measure)
