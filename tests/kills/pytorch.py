"""A life of a PyTorch script: its optimizer is wrapped, or given plain loops; models and optimizers are compared to the bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
import torch._dynamo  # the first step imports it, which would take every life a second
import torch.distributed

from tests.kills import job
from tests.kills.job import Death, Script
from tests.kills.judge import Expected, Life, finished, judge, killed, plan_deaths, prove
from tranlogs.training import Remembered
from tranlogs_torch import LoggedOptimizer, RecoveryReport

__all__ = ["Death", "Expected", "Job", "Life", "Script", "finished", "judge", "killed", "plan_deaths", "prove"]


class Job(job.Job):
    """One life of a script, as if it printed what `recover()` returns."""

    logs: ClassVar[str] = "tranlogs_torch:LoggedOptimizer"
    defaults: ClassVar[dict[str, Any]] = {"durability": "process", "segment_bytes": 1 << 20, "checkpoint_every": 7}

    def __init__(self, folder: Path, run: Path | None = None, death: Death | None = None, **options: Any) -> None:
        super().__init__(folder, run, death, **options)
        self.reports: list[RecoveryReport] = []
        self.recover_at: int | None = None

    def wrap(self, optimizer: torch.optim.Optimizer, model: Any = None, **options: Any) -> Any:
        """Return the optimizer, logged; or plain, with the loops of a logged one."""
        if self.run is None:
            return with_plain_loops(optimizer)
        logged = LoggedOptimizer(optimizer, self.run, model, **(self.options | options))
        self.watch(lambda: logged.report)
        return logged

    def add_optimizer(self, logged: Any, optimizer: torch.optim.Optimizer, name: str, **options: Any) -> Any:
        """Return another optimizer of the same run."""
        return optimizer if self.run is None else logged.add_optimizer(optimizer, name, **options)

    def start(self, optimizer: Any, /, **tracked: Any) -> None:
        """Track and recover, and print the report."""
        if self.run is None:
            return
        optimizer.track(**tracked)
        self.reports.append(optimizer.recover(self.recover_at))
        self.tell(self.reports[-1])

    def tell(self, report: RecoveryReport) -> None:
        """Print what a recovery came to."""
        print(f"TranLogs: {report}")

    def contents(self, thing: Any) -> Any:
        """Return what is compared of a module, an optimizer, or anything with a state_dict."""
        return contents(thing)

    def random_states(self) -> dict[str, Any]:
        """Return the states of the generators that a whole process shares."""
        return super().random_states() | {"torch": torch.get_rng_state()}


class RankJob(Job):
    """One process of a life that a group lives; each has a folder of its own in that of the life."""

    def __init__(self, folder: Path, run: Path | None = None, death: Death | None = None, **options: Any) -> None:
        self.rank = int(os.environ["RANK"])
        super().__init__(folder / f"rank{self.rank}", run, death if death and death.rank == self.rank else None, **options)

    def live(self, script: Script) -> None:
        """Run the script with the others of the group."""
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")
        super().live(script)
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()

    def tell(self, report: RecoveryReport) -> None:
        """Print what a recovery came to, on the first rank alone."""
        if self.rank == 0:
            super().tell(report)


def with_plain_loops(optimizer: torch.optim.Optimizer) -> Any:
    """Return a plain optimizer with the loops and methods of a logged one, written in the plainest way."""
    plain: Any = optimizer
    plain.batches, plain.epochs, plain.steps = _batches, _epochs, _steps
    plain.clip_grad_norm_ = partial(_clip, optimizer)
    plain.log_scalars = lambda **_: None
    plain.remember = SimpleNamespace
    plain.remember_times = SimpleNamespace
    plain.close = lambda: None
    return plain


def _batches(loader: Any, until: int | None = None, *, enumerate: bool = False) -> Iterator[Any]:
    taken = 0
    while until is None or taken < until:
        for batch in loader:
            taken += 1
            yield (taken - 1, batch) if enumerate else batch
            if taken == until:
                return


def _steps(until: int, *, stateless: bool = False) -> range:
    return range(until)


class _PlainEpoch(int):
    loader: Any = None
    batch = 0

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, Any]]:
        return enumerate(self.loader, start)


def _epochs(count: int, loader: Any) -> Iterator[_PlainEpoch]:
    for number in range(count):
        epoch = _PlainEpoch(number)
        epoch.loader = loader
        yield epoch


def _clip(optimizer: torch.optim.Optimizer, max_norm: float, **options: Any) -> torch.Tensor:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, **options)


def contents(thing: Any) -> Any:
    """Return what is compared of a module, an optimizer, or anything with a state_dict."""
    if isinstance(thing, LoggedOptimizer):
        return contents(thing.inner)
    if isinstance(thing, torch.optim.Optimizer):
        parameters = [p for group in thing.param_groups for p in group["params"]]
        groups = [{k: v for k, v in g.items() if k not in ("params", "param_names")} for g in thing.param_groups]
        return {"params": parameters, "state": [thing.state.get(p) for p in parameters], "groups": groups}
    if isinstance(thing, (Remembered, SimpleNamespace)):
        return {name: contents(value) for name, value in vars(thing).items()}
    if isinstance(thing, torch.nn.Module):
        return dict(thing.named_parameters()) | dict(thing.named_buffers())
    if isinstance(thing, np.random.Generator):
        return thing.bit_generator.state
    if isinstance(thing, dict):
        return {name: contents(value) for name, value in thing.items()}
    if hasattr(thing, "state_dict"):
        return thing.state_dict()
    return contents(thing.get_state()) if hasattr(thing, "set_state") else thing
