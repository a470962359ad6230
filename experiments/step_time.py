"""What replaying gradients or weights saves of a training step, and the share of a step that is not the optimizer's.

    python experiments/step_time.py [--quick] [--out FILE]

Saved is the share of a computed step that a redone one does not take: `seconds_replay` of TranLogs' own recovery, over the
number of steps that it redid. That is all of redoing: reading the log and its checksums, the update, comparing fingerprints,
and at the end the auxiliary state. What was recovered is compared bit for bit.

All times are processor time of the one thread that computes, or recovers: they hold on a busy machine, too, but for its caches.
(The log is read from the page cache, so there is no disk to wait for.) The models take turns, round by round: some plain
steps, then a recovery for each kind of log; a round's ratios are of the same minute. Medians of the rounds, with quartiles.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from harness import measured_folder, take
from paired_timing import spread
from workloads import NAMES, Workload, loss_of, optimizer_of, workload

from tranlogs_torch import LoggedOptimizer

_LOGS: tuple[Literal["gradients", "weights"], ...] = ("gradients", "weights")
_WARM_UP = 3  # steps: memory is touched for the first time, and the optimizer's state is made


class Logged:
    """A run that was trained, and recoveries of it."""

    def __init__(self, work: Workload, run: Path, log: Literal["gradients", "weights"], steps: int) -> None:
        """Take some steps, a checkpoint (so that no redone step is the first of its optimizer), and `steps` steps."""
        self._work, self._run, self._log, self._steps = work, run, log, steps
        self.saved: list[float] = []
        model, optimizer = self._optimizer(seed=0)
        optimizer.recover()
        stream, last = work.stream(), _WARM_UP + steps
        for turn in optimizer.steps(last, stateless=True):
            if turn == _WARM_UP - 1:
                optimizer.checkpoint()  # at the end of this one
            x, y = next(stream)
            loss_of(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        self._state = model.state_dict()
        self.bytes_per_step = optimizer.training_run.journal.log_bytes / last
        optimizer.close()

    def _optimizer(self, seed: int) -> tuple[Any, LoggedOptimizer]:
        """Return a fresh model, and its optimizer under the log."""
        model = self._work.model(seed)
        settings: dict[str, Any] = {"checkpoint_every": 10**9, "durability": "process"}
        return model, LoggedOptimizer(optimizer_of(model), self._run, model, log=self._log, **settings)

    def recover(self) -> float:
        """Recover another model behind the checkpoint; return seconds of a redone step.

        Raises:
            SystemExit: it is not what it was.
        """
        model, optimizer = self._optimizer(seed=1)
        with _processor_clock():
            report = optimizer.recover()
        optimizer.close()
        differing = [name for name, value in model.state_dict().items() if not torch.equal(value, self._state[name])]
        if report.replayed != self._steps or differing or report.first_divergent_step is not None:
            raise SystemExit(f"{self._work.name}, {self._log}: not recovered: {differing}; {report}")
        return report.seconds_replay / report.replayed


@contextmanager
def _processor_clock() -> Iterator[None]:
    """Recovery takes its times by the processor's clock."""
    recovery: Any = import_module("tranlogs.recovery.recover")
    before = recovery.time
    recovery.time = SimpleNamespace(monotonic=time.thread_time)
    try:
        yield
    finally:
        recovery.time = before


class Course:
    """One model through all rounds: plain steps, and recoveries of its runs."""

    def __init__(self, work: Workload, folder: Path, logged: int) -> None:
        self.work, self._model = work, work.model(seed=0)
        self._optimizer, self._stream = optimizer_of(self._model), work.stream()
        self._steps: list[float] = []  # seconds, a round each
        self._others: list[float] = []  # shares of what is not the optimizer's
        self._logs = {log: Logged(work, folder / log, log, logged) for log in _LOGS}
        for _ in range(_WARM_UP):
            self._step()

    def round(self, steps: int) -> None:
        """Take some plain steps, and recoveries."""
        self._step()  # puts its own memory into the caches again; not counted
        taken = np.array([self._step() for _ in range(steps)])
        self._steps.append(float(np.median(taken.sum(1))))
        self._others.append(float(taken.sum(0)[0] / taken.sum()))
        for log in self._logs.values():
            log.saved.append(1 - log.recover() / self._steps[-1])

    def _step(self) -> tuple[float, float]:
        """Take a plain step; return the seconds until the optimizer's turn, and of that."""
        begun = time.thread_time()
        x, y = next(self._stream)
        loss_of(self._model(x), y).backward()
        computed = time.thread_time()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return computed - begun, time.thread_time() - computed

    def result(self) -> dict[str, Any]:
        """Return what was found, for the JSON."""
        logs = {log: {"bytes_per_step": one.bytes_per_step, "saved": spread(one.saved)} for log, one in self._logs.items()}
        parameters = sum(p.numel() for p in self._model.parameters())
        return {"parameters": parameters, "seconds": spread(self._steps), "others": spread(self._others), "logs": logs}


def measure(*, quick: bool) -> dict[str, Any]:
    """Take all models, round by round."""
    names, rounds, steps, logged = (NAMES[:1], 2, 2, 2) if quick else (NAMES, 12, 8, 32)
    with measured_folder() as folder:
        courses = [Course(workload(name, small=quick), Path(folder) / name, logged) for name in names]
        for _ in range(rounds):
            for course in courses:
                course.round(steps)
    models = {course.work.name: course.result() for course in courses}
    for name, found in models.items():
        print(f"  {name}: {found}", flush=True)
    return {"logged": logged, "models": models}


if __name__ == "__main__":
    torch.set_num_threads(1)
    take(__doc__, "step_time", measure)
