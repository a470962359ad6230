"""The unit that is computed again after a crash: what its comparison with the log costs, over the step that is computed.

A child trains some steps and dies by SIGKILL. Fresh processes, each on a copy of the dead run, recover and let the loop compute
the last step again; the comparison is timed by the run itself (`report.seconds_recheck`), and the plain step by the steps of
an optimizer that is not logged, in the same process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import training_cases
from figures import Figure
from harness import ask_child, command_line, measured_folder, take
from turns import spread

from tranlogs_torch import LoggedOptimizer

CASES = {"MLP 2.1 M": training_cases.mlp, "400 small tensors": training_cases.many, "GPT 10.9 M": training_cases.gpt}
_STEPS, _LIVES, _PLAIN_STEPS = 12, 7, 9


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Return the ratio of a unit that is computed and compared to one that is computed only, by case."""
    figures = []
    for name in list(CASES)[:1] if quick else CASES:
        with measured_folder() as folder:
            run, copy = Path(folder) / "run", Path(folder) / "copy"
            died = subprocess.run([sys.executable, __file__, "--train", name, str(run)], check=False).returncode
            if died != -signal.SIGKILL:
                raise SystemExit(f"the training child ended with {died}, expected death by SIGKILL")
            ratios = []
            for _ in range(2 if quick else _LIVES):
                shutil.copytree(run, copy)
                found = ask_child(__file__, "--resume", name, copy, environment={**os.environ, "TRANLOGS_RECHECK": "1"})
                shutil.rmtree(copy)
                ratios.append(1 + found["compared"] / found["plain"])
        figures.append(Figure.of(name, "a unit computed again and compared, over the unit", spread(ratios), "", 1.05))
        print(f"  {name}: {figures[-1].shown}", flush=True)
    return {"figures": [figure.as_dict() for figure in figures]}


def _train(name: str, run: Path) -> None:
    work = CASES[name]()
    optimizer = LoggedOptimizer(work.optimizers[0], run, work.model)
    optimizer.recover()
    for step in optimizer.steps(10**9, stateless=True):
        work.compute([optimizer])
        if step == _STEPS:
            os.kill(os.getpid(), signal.SIGKILL)


def _resume(name: str, run: Path) -> None:
    torch.manual_seed(1)
    work = CASES[name]()
    optimizer = LoggedOptimizer(work.optimizers[0], run, work.model)
    optimizer.recover()
    for number, _ in enumerate(optimizer.steps(10**9, stateless=True)):
        if number == 1:
            break
        work.compute([optimizer])
    report = optimizer.report
    if report.recheck != "equal" and report.recheck != "different":
        raise AssertionError(f"no unit was computed again: {report}")
    optimizer.close()
    plain, seconds = CASES[name](), []
    for _ in range(_PLAIN_STEPS):
        start = time.perf_counter()
        plain.compute(plain.optimizers)
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"compared": report.seconds_recheck, "plain": statistics.median(seconds), "recheck": report.recheck}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        _train(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1:2] == ["--resume"]:
        _resume(sys.argv[2], Path(sys.argv[3]))
    else:
        take(command_line(__doc__, out="recheck"), measure)
