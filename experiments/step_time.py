"""Where a training step's time goes, and what replaying gradients or weights saves of it.

    python experiments/step_time.py [--quick] [--out FILE]

Phases: data (the loader hands out the next batch), forward (with the loss), backward, optimizer (with `zero_grad`).
Saved is the share of a computed step that a redone one does not take: `seconds_replay` of TranLogs' own recovery, over the
number of steps that it redid. That is all of redoing: reading the log and its checksums, the update, comparing fingerprints,
and at the end the auxiliary state. What was recovered is compared bit for bit.

All times are processor time of the one thread that computes, or recovers: they hold on a busy machine, too, but for its caches.
(The log is read from the page cache, so there is no disk to wait for.) The models take turns, round by round: some plain
steps, then a recovery of one step and one of all steps for each kind of log; a round's ratios are of the same minute.
Intervals are 95 % of a bootstrap over the rounds, since neighbouring steps are alike.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from harness import measured_folder, take
from paired_timing import bootstrap
from pictures import draw_step_time
from torch import Tensor
from workloads import NAMES, Workload, loss_of, optimizer_of, workload

from tranlogs_torch import LoggedOptimizer

PHASES = ("data", "forward", "backward", "optimizer")
_LOGS: dict[str, dict[str, Any]] = {
    "gradients": {"log": "gradients"},
    "weights": {"log": "weights"},
    "weights without optimizer state": {"log": "weights", "optimizer_state": False},
}
_WARM_UP = 3  # steps: memory is touched for the first time, and the optimizer's state is made


@dataclass(slots=True)
class Logged:
    """A run that was trained, and recoveries of it.

    Attributes:
        states: the model's after the first step behind the checkpoint and after the last, by step.
        one, many: seconds of redoing a step, where one or all were redone, by round.
    """

    run: Path
    settings: dict[str, Any]  # of its LoggedOptimizer
    bytes_per_step: float = 0.0  # of log
    states: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    one: list[float] = field(default_factory=list)
    many: list[float] = field(default_factory=list)

    def optimizer(self, work: Workload, seed: int) -> tuple[Any, LoggedOptimizer]:
        """A fresh model under the log."""
        model = work.model(seed)
        return model, LoggedOptimizer(
            optimizer_of(model), self.run, model, checkpoint_every=10**9, durability="process", **self.settings
        )

    def train(self, work: Workload, steps: int) -> None:
        """Some steps, a checkpoint (so that no redone step is the first of its optimizer), and `steps` steps."""
        model, optimizer = self.optimizer(work, seed=0)
        optimizer.recover()
        stream, last = work.stream(), _WARM_UP + steps
        for turn in optimizer.steps(last):
            if turn == _WARM_UP - 1:
                optimizer.checkpoint()  # at the end of this one
            elif turn == _WARM_UP + 1:
                self.states[turn] = _copy(model)
            x, y = next(stream)
            loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        self.states[last] = _copy(model)
        self.bytes_per_step = optimizer.training_run.journal.log_bytes / last
        optimizer.close()

    def recover(self, work: Workload, steps: int) -> float:
        """Another model comes to so many steps behind the checkpoint; seconds of redoing them.

        Raises:
            SystemExit: it is not what it was.
        """
        model, optimizer = self.optimizer(work, seed=1)
        step = _WARM_UP + steps
        with _processor_clock():
            report = optimizer.recover(step)
        optimizer.close()
        differing = [name for name, value in model.state_dict().items() if not torch.equal(value, self.states[step][name])]
        is_whole = self.settings.get("optimizer_state", True)
        if report.replayed != steps or differing or (is_whole and report.first_divergent_step is not None):
            raise SystemExit(f"{work.name}, {self.settings}: not recovered to step {step}: {differing}; {report}")
        return report.seconds_replay


@contextmanager
def _processor_clock() -> Iterator[None]:
    """Recovery takes its times by the processor's clock."""
    recovery = import_module("tranlogs.recovery.recover")
    before = recovery.time
    recovery.time = SimpleNamespace(monotonic=time.thread_time)
    try:
        yield
    finally:
        recovery.time = before


def _copy(model: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


class Course:
    """One model through all rounds: phases of its plain steps, and recoveries of its runs."""

    def __init__(self, work: Workload, folder: Path, logged: int) -> None:
        self.work, self._logged = work, logged
        self.model = work.model(seed=0)
        self._optimizer, self._stream = optimizer_of(self.model), work.stream()
        self._phases: list[Any] = []  # of each round: (steps, phases) in seconds
        self.logs = {name: Logged(folder / name.replace(" ", "-"), settings) for name, settings in _LOGS.items()}
        for log in self.logs.values():
            log.train(work, logged)
        for _ in range(_WARM_UP):
            self._step()

    def round(self, steps: int) -> None:
        """Take some plain steps, and recoveries."""
        self._step()  # puts its own memory into the caches again; not counted
        self._phases.append(np.array([self._step() for _ in range(steps)]))
        for log in self.logs.values():
            log.one.append(log.recover(self.work, 1))
            log.many.append(log.recover(self.work, self._logged) / self._logged)

    def _step(self) -> list[float]:
        """A plain step; seconds of its phases."""
        moments = [time.thread_time()]
        x, y = next(self._stream)
        moments.append(time.thread_time())
        loss = loss_of(self.model(x), y)
        moments.append(time.thread_time())
        loss.backward()
        moments.append(time.thread_time())
        self._optimizer.step()
        self._optimizer.zero_grad()
        moments.append(time.thread_time())
        return [after - before for before, after in itertools.pairwise(moments)]

    def result(self) -> dict[str, Any]:
        """For the JSON."""
        totals = [block.sum(0) for block in self._phases]
        steps = np.array([np.median(block.sum(1)) for block in self._phases])
        shares = bootstrap(totals, lambda blocks: blocks.sum(0) / blocks.sum())
        rest = bootstrap(totals, lambda blocks: 1 - blocks.sum(0)[-1] / blocks.sum())
        logs: dict[str, Any] = {}
        for name, log in self.logs.items():
            saved = {
                key: bootstrap(1 - np.array(taken) / steps, np.median) for key, taken in (("one", log.one), ("many", log.many))
            }
            logs[name] = {"bytes_per_step": log.bytes_per_step, "saved": saved}
        return {
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "seconds": bootstrap(steps, np.median),
            "shares": shares,
            "without_optimizer": rest,
            "logs": logs,
        }


def measure(*, quick: bool) -> dict[str, Any]:
    """Take all models, round by round."""
    names, rounds, steps, logged = (NAMES[:1], 2, 2, 2) if quick else (NAMES, 12, 8, 32)
    with measured_folder() as folder:
        courses = [Course(workload(name, small=quick), Path(folder) / name, logged) for name in names]
        for i in range(rounds):
            for course in courses:
                course.round(steps)
            print(f"  round {i + 1} of {rounds}", flush=True)
    models = {course.work.name: course.result() for course in courses}
    for name, found in models.items():
        shares = ", ".join(f"{phase} {share:.1%}" for phase, share in zip(PHASES, found["shares"][0], strict=True))
        print(f"  {name}, step {found['seconds'][0] * 1e3:.1f} ms: {shares}")
        for log, about in found["logs"].items():
            print(f"    {log}: saved {about['saved']}")
    return {"phases": PHASES, "logged": logged, "models": models}


if __name__ == "__main__":
    torch.set_num_threads(1)
    take(__doc__, "step_time", measure, draw_step_time)
