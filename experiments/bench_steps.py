"""What a logged training step costs: PyTorch loops from tiny to stiff, with one thread and with two.

Arms train the same model on the same data in one process and take turns in blocks of steps. Before that a run logs until
checkpoints have let go of several log files, which are used again: steady state. Checkpoints are taken between blocks, and what
was not synced yet is waited for there, so that no arm pays for another; what a checkpoint costs is measured by
bench_space.py. One arm is as TranLogs comes: it has found out what gradients cost before the turns begin. One arm is the
floor: the least that any log of gradients costs here (cost_floor.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
from cost_floor import FloorLog
from harness import measured_folder
from paired_timing import AUTO, FLOOR, MACHINE, PLAIN, Block, compare, take_turns, tell
from torch.optim import Optimizer
from training_cases import CASES, Case, Work, gradients_given, shortened

from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.capture.optimizer_hooks import LogKind

_INTERVALS_WARM = 4  # checkpoints before steady state
_FLOOR_BYTES_MIN = 4 << 20
_NEVER = 10**9
_TRIAL_STEPS_MAX = 60


class Plain:
    """A loop without a log."""

    def __init__(self, work: Work) -> None:
        self.work, self.optimizers = work, list(work.optimizers)

    def block(self, steps: int, seconds_max: float) -> list[float]:
        """Do some steps, or fewer where they would take too long; return the seconds of each but the first."""
        self.prepare()
        seconds: list[float] = []
        while len(seconds) < steps and sum(seconds) < seconds_max:
            start = perf_counter()
            self.step()
            seconds.append(perf_counter() - start)
        self.settle()
        return seconds

    def prepare(self) -> None:
        """Do a step that does not count."""
        self.step()

    def step(self) -> None:
        """Do one step."""
        self.work.compute(self.optimizers)

    def settle(self) -> None:
        """Wait for what is still being written."""


class Logged(Plain):
    """A loop with a log, in log files of some size."""

    def __init__(self, work: Work, run: Path, segment_bytes: int, log: LogKind | Literal["auto"] = "gradients") -> None:
        super().__init__(work)
        first, *rest = work.optimizers
        self.logged = LoggedOptimizer(
            first, run, work.model, log=log, checkpoint_every=_NEVER, keep=1, segment_bytes=segment_bytes, on_signal=None
        )
        others = [self.logged.add_optimizer(other, f"other{i}") for i, other in enumerate(rest)]
        self.optimizers: list[Optimizer] = [self.logged, *others]
        self.logged.recover()
        self._turns: Any = self.logged.steps(_NEVER)
        next(self._turns)
        self._interval = max(8, -(-segment_bytes // work.step_bytes))  # steps
        self._since = 0

    def step(self) -> None:
        super().step()
        next(self._turns)
        self._since += 1

    def prepare(self) -> None:
        if self._since >= self._interval:
            self._checkpoint()
        self.step()

    def warm(self) -> None:
        """Log until log files are used again: with one thread, which the load of the machine cannot bring to a halt."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for _ in range(_INTERVALS_WARM):
            for _ in range(self._interval):
                gradients_given(self.work)
                for optimizer in self.optimizers:
                    optimizer.step()
                self.work.model.zero_grad()
                next(self._turns)
            self._checkpoint()
            self.settle()
        torch.set_num_threads(threads)

    def decide(self) -> None:
        """Let the run find out what it logs."""
        for _ in range(_TRIAL_STEPS_MAX):
            self.step()

    def settle(self) -> None:
        self.logged.training_run.journal.wait_synced()
        self.logged.training_run.journal.wait_checkpoint()

    def close(self) -> None:
        """Close the run."""
        self._turns.close()
        self.logged.close()

    def _checkpoint(self) -> None:
        self.logged.checkpoint()
        self.step()
        self.settle()
        self._since = 0


class Floor(Plain):
    """A loop whose gradients are written to a file and hashed, and nothing else."""

    def __init__(self, work: Work, path: Path) -> None:
        super().__init__(work)
        self._log = FloorLog(path, self.optimizers, max(_FLOOR_BYTES_MIN, 4 * work.step_bytes))

    def settle(self) -> None:
        self._log.settle()

    def close(self) -> None:
        """End its threads."""
        self._log.close()


def steps(*, quick: bool) -> dict[str, Any]:
    """Time all arms of all cases."""
    found: dict[str, Any] = {"cases": []}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for case in shortened(CASES) if quick else CASES:
            told = _case(case, threads)
            found["cases"].append(told)
            tell(f"{case.name}, {threads} threads", told["steady"])
    return found


def _case(case: Case, threads: int) -> dict[str, Any]:
    with measured_folder() as folder:
        plain = Plain(case.make())
        logged = Logged(case.make(), Path(folder) / "run", case.segment_bytes)
        logged.warm()
        auto = Logged(case.make(), Path(folder) / "auto", case.segment_bytes, log="auto")
        auto.decide()
        floor = Floor(case.make(), Path(folder) / "floor")
        arms: dict[str, Plain] = {PLAIN: plain, MACHINE: logged, AUTO: auto, FLOOR: floor}
        times = take_turns(blocks_of(arms, case), case.rounds, seconds_max=case.seconds_max)
        logged.close()
        auto.close()
        floor.close()
    return {"case": case.name, "threads": threads, "steady": {name: compare(times, name) for name in times}}


def blocks_of(arms: Mapping[str, Plain], case: Case) -> dict[str, Block]:
    """Return the blocks of a case, by arm."""
    return {name: partial(arm.block, case.steps, case.seconds_max / 8) for name, arm in arms.items()}
