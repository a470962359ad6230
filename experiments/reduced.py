"""Gradients that are rounded to a half or a quarter of the bytes: what training makes of them, and what a step costs.

    python experiments/reduced.py [--quick] [--out FILE]

A small CNN and a small GPT train with three seeds on each log; the loss on data that was held back is taken on the way. A
seed chooses first weights and batches, and is the noise that a difference has to be compared with. Steps are timed in turns.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from bench_steps import Logged, blocks_of
from harness import measured_folder, take
from paired_timing import compare, take_turns
from pictures import draw_reduced
from training_cases import CASES, shortened
from workloads import Workload, loss_of, optimizer_of, workload

from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.capture.optimizer_hooks import LogKind

_SEEDS, _STEPS, _LOOKS = 3, {"CNN": 500, "GPT": 700}, 10
_TIMED = ("MLP, 2.1 M", "wide, 12.5 M", "400 small tensors")
LOGS: tuple[LogKind, ...] = tuple(kind for kind in get_args(LogKind) if kind.startswith("gradients"))


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Curves of both models, then times."""
    models: dict[str, Any] = {}
    for name, steps in ({"CNN": _LOOKS} if quick else _STEPS).items():
        work = workload(name, small=quick)
        curves: dict[str, list[list[float]]] = {log: [] for log in LOGS}
        for seed in range(2 if quick else _SEEDS):
            for log in LOGS:
                curves[log].append(list(_train(work, seed, log, steps)))
                print(f"  {name}, seed {seed}, {log}: loss {curves[log][-1][-1]:.4f}", flush=True)
        at = [steps * (i + 1) // _LOOKS for i in range(_LOOKS)]
        models[name] = {"steps": at, "curves": curves, "verdict": _compare(curves)}
    return {"models": models, "times": list(_time(quick=quick))}


def _train(work: Workload, seed: int, log: LogKind, steps: int) -> Iterator[float]:
    """Yield the loss on what was held back, ten times."""
    model = work.model(seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        LoggedOptimizer(optimizer_of(model), folder, model, log=log, durability="process") as optimizer,
    ):
        loader = work.loader()
        optimizer.track(loader=loader).recover()
        for step, (x, y) in enumerate(optimizer.batches(loader, until=steps), 1):
            loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % (steps // _LOOKS) == 0:
                yield work.quality(model)["loss"]


def _compare(curves: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Return the last losses: of each log the mean, and the seeds' spread without rounding."""
    last = {log: [curve[-1] for curve in found] for log, found in curves.items()}
    means = {log: statistics.mean(values) for log, values in last.items()}
    return {"means": means, "spread": statistics.stdev(last["gradients"])}


def _time(*, quick: bool) -> Iterator[dict[str, Any]]:
    cases = list(shortened(CASES)) if quick else [replace(c, seconds_max=25.0) for c in CASES if c.name in _TIMED]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for case in cases:
            with measured_folder() as folder:
                arms: dict[str, Logged] = {
                    log: Logged(case.make(), Path(folder) / log, case.segment_bytes, log=log) for log in LOGS
                }
                for arm in arms.values():
                    arm.warm()
                times = take_turns(blocks_of(arms, case), case.rounds, seconds_max=case.seconds_max)
                nbytes = {}
                for log, arm in arms.items():
                    journal = arm.logged.training_run.journal
                    start, step = journal.log_bytes, journal.step
                    arm.block(case.steps, case.seconds_max)
                    nbytes[log] = (journal.log_bytes - start) / (journal.step - step)
                    arm.close()
            ratios = {log: compare(times, log, "gradients")["median"] for log in LOGS[1:]}
            print(f"  {case.name}, {threads} threads: {ratios}, {nbytes}", flush=True)
            yield {"case": case.name, "threads": threads, "bytes": nbytes, "over_gradients": ratios}


if __name__ == "__main__":
    torch.set_num_threads(1)
    take(__doc__, "reduced", measure, draw_reduced)
