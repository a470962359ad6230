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
from harness import bootstrap, command_line, measured_folder, take
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


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: rounds, plain steps in each, steps in a log behind its checkpoint."""

    rounds: int
    steps: int
    logged: int


FULL, QUICK = Size(rounds=12, steps=8, logged=32), Size(rounds=2, steps=2, logged=2)


@dataclass(slots=True)
class Logged:
    """A run that was trained, and recoveries of it.

    Attributes:
        settings: of its LoggedOptimizer.
        bytes_per_step: of log.
        states: the model's after the first step behind the checkpoint and after the last, by step.
        one, many: seconds of redoing a step, where one or all were redone, by round.
    """

    run: Path
    settings: dict[str, Any]
    bytes_per_step: float = 0.0
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
    recovery.time = SimpleNamespace(monotonic=time.thread_time)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        recovery.time = before  # type: ignore[attr-defined]


def _copy(model: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


class Course:
    """One model through all rounds: phases of its plain steps, and recoveries of its runs."""

    def __init__(self, work: Workload, folder: Path, size: Size) -> None:
        self.work, self.size = work, size
        self.model = work.model(seed=0)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self._optimizer, self._stream = optimizer_of(self.model), work.stream()
        self.phases: list[Any] = []  # of each round: (steps, phases) in seconds
        self.logs = {name: Logged(folder / name.replace(" ", "-"), settings) for name, settings in _LOGS.items()}
        for log in self.logs.values():
            log.train(work, size.logged)
        for _ in range(_WARM_UP):
            self._step()

    def round(self) -> None:
        """Some plain steps, and recoveries."""
        self._step()  # puts its own memory into the caches again; not counted
        self.phases.append(np.array([self._step() for _ in range(self.size.steps)]))
        for log in self.logs.values():
            log.one.append(log.recover(self.work, 1))
            log.many.append(log.recover(self.work, self.size.logged) / self.size.logged)

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
        totals = [block.sum(0) for block in self.phases]
        steps = np.array([np.median(block.sum(1)) for block in self.phases])
        shares = bootstrap(totals, lambda blocks: blocks.sum(0) / blocks.sum())
        rest = bootstrap(totals, lambda blocks: 1 - blocks.sum(0)[-1] / blocks.sum())
        logs: dict[str, Any] = {}
        for name, log in self.logs.items():
            saved = {
                key: bootstrap(1 - np.array(taken) / steps, np.median) for key, taken in (("one", log.one), ("many", log.many))
            }
            logs[name] = {"bytes_per_step": log.bytes_per_step, "saved": saved}
        return {
            "data": self.work.data,
            "batch": self.work.batch,
            "parameters": self.parameters,
            "seconds": bootstrap(steps, np.median),
            "shares": shares,
            "without_optimizer": rest,
            "logs": logs,
        }


def measure(*, quick: bool = False) -> dict[str, Any]:
    """All models, round by round."""
    size = QUICK if quick else FULL
    names = NAMES[:1] if quick else NAMES
    with measured_folder() as folder:
        courses = [Course(workload(name, small=quick), Path(folder) / name, size) for name in names]
        for i in range(size.rounds):
            for course in courses:
                course.round()
            print(f"  round {i + 1} of {size.rounds}", flush=True)
    models = {course.work.name: course.result() for course in courses}
    for name, found in models.items():
        _tell(name, found)
    return {"phases": PHASES, "rounds": size.rounds, "steps": size.steps, "logged": size.logged, "models": models}


def _tell(name: str, found: dict[str, Any]) -> None:
    shares = ", ".join(f"{phase} {share:.1%}" for phase, share in zip(PHASES, found["shares"][0], strict=True))
    print(f"  {name:5s} {found['parameters'] / 1e6:.1f} M parameters, step {found['seconds'][0] * 1e3:.1f} ms: {shares}")
    for log, about in found["logs"].items():
        one, low, high = about["saved"]["one"]
        print(
            f"    {log:32s} {about['bytes_per_step'] / 1e6:6.2f} MB a step; saved of a step, redone alone: {one:.1%} "
            f"[{low:.1%}, {high:.1%}], among others: {about['saved']['many'][0]:.1%}"
        )


def main() -> None:
    parser = command_line(__doc__, "one model, few rounds: checks the script, not the claim", out="step_time")
    torch.set_num_threads(1)
    take(parser, measure, draw_step_time)


if __name__ == "__main__":
    main()
