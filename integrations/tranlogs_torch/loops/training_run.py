"""One training run in this process: makes its parts, and connects them with the hooks of optimizers and with loops."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import coded
from tranlogs.training import (
    LiveReport,
    Progress,
    RecoveryReport,
    Remembered,
    Restarts,
    Rung,
    RunResources,
    RunSettings,
    ScalarHistory,
    name_loop,
    path_of_remembered,
)

from ..capture.forward_hook import ForwardHook
from ..capture.logged_run import LoggedRun
from ..capture.optimizer_hooks import OptimizerHooks
from ..capture.staging import Staging
from ..data.epoch import Epoch
from ..distributed.process_group import demand_group
from ..offline.recorded_state import LiveState
from ..sharding.shards import demand_known_modules
from ..state import naming
from ..state.auxiliary import Auxiliary
from ..state.loader_positions import LoaderPositions
from ..state.tracked_objects import REMEMBERED
from ..tensors import arrays
from .boundaries import Boundaries
from .companions import Companions
from .group_coordinator import make_coordinator
from .loops import Loops
from .phases import Closed, Forked, Fresh, Landed
from .recovery import Recovery
from .run_parts import RunParts
from .script_values import make_framework

_log = logging.getLogger("tranlogs")


class TrainingRun:
    """A run, its optimizers and its loops in this process. `LoggedOptimizer` makes one; `add_optimizer` shares it.

    It makes the parts of the run and connects them. Optimizers, loops and trainers reach the parts through it.

    Args:
        settings: of the run.
        models: the modules that are trained.
        rank: of this process; None for its rank in torch.distributed.
        on_cuda: whether gradients lie on a GPU.
        segment_bytes: size of a log file where the settings have none.
        worker_seeds: see `LoggedOptimizer`.
        copies: in how many journals each gradient is logged.

    Attributes:
        run: folder of the run.
        modules: that are trained, by prefix.
        hooks: of the optimizers, by name.
        environment: on which rounding depends, as it is now.
        scalars: that the loop has logged.
        report: of the recovery.
        restarts: names values of the script that start over.
        state: parameters, optimizers and buffers.
        auxiliary: what boundaries commit besides.
        coordinator: connects the processes that train together.
        journal: of this process.
        logged: the run as the hooks of its optimizers use it, with its phase.
    """

    def __init__(
        self,
        settings: RunSettings,
        models: naming.Models,
        *,
        rank: int | None,
        on_cuda: bool,
        segment_bytes: int | None = None,
        worker_seeds: str | None = None,
        copies: int = 1,
        rung: Rung | None = None,
    ) -> None:
        self.run = settings.run
        demand_group(self.run)  # before a journal is opened: all would open that of rank 0
        self.modules = modules = naming.as_modules(models)
        demand_known_modules(modules)
        self.report = report = LiveReport(self.run)
        self.state = LiveState(modules, {}, lambda body: self._recovery.set_auxiliary(body), fingerprint=settings.fingerprint)
        self._recovery: Recovery
        self._loops: Loops
        self._companions: Companions
        positions = LoaderPositions(
            lambda position: self.logged.phase.boundary(position),
            lambda position: self._loops.opening(position),
            self._doubt,
            lambda position: self._companions.adopt(position),
            worker_seeds,
        )
        self.auxiliary = Auxiliary(self.state, positions, self._doubt)
        self.hooks = hooks = dict[str, OptimizerHooks]()
        self.environment = environment = dict[str, Any]()  # filled with the optimizers, before anything is written
        self.coordinator = make_coordinator(self.state, settings.policy, rank, copies)
        rung = self.coordinator.share_rung(self.run, rung or Rung(logs_tensors=True))
        if on_cuda and not torch.are_deterministic_algorithms_enabled():
            rung.is_repeatable = False  # atomic additions
        self._resources = RunResources(
            settings,
            framework="torch",
            environment=environment,
            adapt=arrays.adapt,
            rank=self.coordinator.rank,
            world=self.coordinator.world,
            writer="thread" if on_cuda else "direct",
            segment_bytes=segment_bytes,
        )
        self.journal = self._resources.journal
        staging = Staging() if self._resources.config.writer == "thread" else None
        if staging is not None:
            self.state.convert = staging.to_array
        self.logged = LoggedRun(self.run, self.journal, self.state, self.auxiliary, self.coordinator, staging, rung)
        self.scalars, self.restarts = ScalarHistory(), Restarts(report, make_framework(modules, hooks, self.auxiliary))
        self._parts = RunParts(
            settings,
            self._resources,
            modules,
            self.state,
            hooks,
            self.logged,
            self.auxiliary,
            self.coordinator,
            environment,
            self.scalars,
            report,
            self.restarts,
            rung,
        )
        rung.on_change = self._parts.install_hooks
        self._recovery = Recovery(self._parts, self._land, self._note_landed, self._note_set_back)
        self._unit = Boundaries(self._parts, self._recovery)
        self._loops = Loops(self._parts, self._unit, self._recovery)
        self._companions = Companions(self._parts, self._loops, self._unit.running)
        self.logged.phase = Fresh(self._parts, self._unit, self._recovery, self._loops)
        self._unit.forward_hooks = [
            ForwardHook(module, lambda: self.logged.phase.before_forward()) for module in modules.values()
        ]
        atexit.register(self._at_exit)
        _runs.add(self)

    @property
    def run_id(self) -> str:
        """The id of the run, which all ranks share."""
        return self._recovery.run_id

    # Putting the run together.

    def _doubt(self, text: str, is_wrong: bool) -> None:
        """Report what of the data or of tracked objects is not recovered."""
        (note,) = coded("not-recovered", [text])
        self.report.warn(note, is_wrong)

    def add(self, hooks: OptimizerHooks) -> None:
        """Add an optimizer under its name."""
        if self.logged.phase.has_begun:
            raise UsageError(f"optimizer {hooks.name!r}: add it before recover() and before the first step")
        if hooks.name in self.hooks:
            raise UsageError(f"the run already has an optimizer {hooks.name!r}; use another name")
        mine = {id(p) for p in naming.named_parameters(self.modules).values()}
        if mine and not any(id(p) in mine for group in hooks.inner.param_groups for p in group["params"]):
            raise UsageError(f"optimizer {hooks.name!r} trains no parameter of model=...; give the module that it trains")
        if (hooks.log == "inputs") == self._parts.rung.logs_tensors:
            raise UsageError(
                f'optimizer {hooks.name!r}: log="inputs" holds for all optimizers of a run, because the loop computes its '
                "steps again as a whole. Give it to each of them, or to none"
            )
        if hooks.reduction is not None and not self.coordinator.is_single:
            raise UsageError(
                f'optimizer {hooks.name!r}: log="{hooks.setting}" is for a process that trains alone. Use log="gradients"'
            )
        self.hooks[hooks.name] = hooks
        self._parts.writes.watches[hooks.name] = hooks.watch
        self.state.optimizers[hooks.name] = hooks.inner
        self.state.named.group_values[hooks.name] = hooks.values
        self.state.named.refresh()
        self._parts.describe_environment()

    # What the script and its trainer declare.

    def track(self, **things: Any) -> None:
        """Track loaders and anything with state_dict / load_state_dict; refuse what cannot be stored."""
        auxiliary = self.auxiliary
        for name, thing in things.items():
            auxiliary.track(name, thing)
        self._recovery.note_tracked(auxiliary.tracked.keys() & things.keys())
        self._recovery.report.refresh()

    def remember_values(self, values: dict[str, Any]) -> Remembered:
        """Remember attributes of the loop's namespace; refuse what cannot be stored."""
        found = self.auxiliary.remember(values)
        self._recovery.note_tracked([REMEMBERED])
        self._recovery.report.refresh()
        return found

    def remember_times(self, values: dict[str, Any]) -> Remembered:
        """Remember attributes that are times which the script measures: no unit that is computed again has them equal."""
        self._recovery.recheck.times += values
        for name in values:
            self.ignore_in_recheck(path_of_remembered(name))
        return self.remember_values(values)

    def ignore_in_recheck(self, path: str) -> None:
        """Leave a value of boundaries ("tracked.learning") out when a unit is computed again: it holds wall-clock times."""
        self._recovery.recheck.ignored.add(path)
        self._recovery.recheck.ignore(path)  # also where the script calls this after recover()

    # Recovery.

    def refresh_report(self) -> None:
        """Make the report of the recovery again: what was missing then may be tracked or declared now."""
        self._recovery.report.refresh()

    def recover(self, step: int | None = None, progress: Progress | None = None) -> RecoveryReport:
        """Bring everything back to the newest boundary, or to `step`. A fresh run starts from what the script has built.

        Raises:
            UsageError: training has begun.
        """
        if self.logged.phase.has_begun:
            report = self.report.current
            if report is not None and self._unit.steps_since_boundary == 0 and self.journal.step == report.step:
                return report  # a notebook cell run twice
            raise UsageError("recover() must come before the first step")
        self._parts.restarts.note_start()
        report = self._recovery.recover(step, progress)
        self._loops.note_start()
        return report

    def _land(self) -> None:
        self.logged.phase = Landed(self._parts, self._unit, self._recovery, self._loops)

    def _note_landed(self) -> None:
        self._unit.landed()
        self._land()

    def _note_set_back(self) -> None:
        """Go on in the running loop with the state that recovery has set back."""
        self._companions.rejoin()
        self.auxiliary.go_on()
        self._loops.note_set_back()
        self._note_landed()

    # State.

    @property
    def is_logging(self) -> bool:
        """True if training has begun in this process, and the run is open."""
        return self.logged.phase.is_logging

    def request_checkpoint(self) -> bool:
        """Ask for a checkpoint at the next boundary; False if logging is suspended."""
        self._parts.writes.wants_checkpoint = True
        return not self.journal.is_suspended

    def expect_end(self) -> None:
        """Note that a loop ends with the next boundary."""
        self._unit.expect_end()

    # Loops.

    def steps(self, until: int, function: str, *, stateless: bool) -> Iterator[int]:
        """Yield the number of each turn of a loop without a loader, which a function of this name begins."""
        return self._loops.steps(until, name_loop("steps", function), stateless=stateless)

    def batches(self, loader: DataLoader[Any], until: int | None, function: str, *, numbered: bool = False) -> Iterator[Any]:
        """Yield the batches of a loader over all epochs; if `numbered`, each with its number in the loop."""
        return self._loops.batches(loader, until, name_loop("batches", function), numbered=numbered)

    def epochs(self, count: int, loader: DataLoader[Any] | None, function: str) -> Iterator[Epoch]:
        """Yield the epochs that are left."""
        return self._loops.epochs(count, loader, name_loop("epochs", function))

    @property
    def runs_again(self) -> bool:
        """True while the script's code before the loop in which the run stood runs once more."""
        return self._loops.runs_again

    # The end.

    def enter_child(self) -> None:
        """Log nothing in a child that this process has forked."""
        self.logged.phase = Forked()
        for hooks in self.hooks.values():
            hooks.switch_off()

    def close(self) -> None:
        """Commit what is complete, seal the log, release the run."""
        error = sys.exc_info()[1]
        is_complete = self._loops.end == "complete" and not self._unit.running and not self._unit.steps_since_boundary
        self._close(is_orderly=error is None or is_complete or id(error) == self._unit.errors_at_step[0])

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        if hasattr(sys, "ps1"):  # an interactive session, which an error does not end
            is_orderly = not self._unit.steps_since_boundary or id(error) == self._unit.errors_at_step[1]
        else:
            is_orderly = error is None
        self._close(is_orderly=is_orderly)

    def _close(self, *, is_orderly: bool) -> None:
        atexit.unregister(self._at_exit)
        self.coordinator.leave()
        if self.is_logging:
            if is_orderly:
                self._parts.restarts.close()
                if self._unit.outside is not None:
                    self._unit.outside.commit()
                self._loops.note_unreached()
                self._recovery.report.note_end()
                self._recovery.recheck.note_end()
            if self._unit.steps_since_boundary:
                _log.log(
                    logging.INFO if is_orderly else logging.WARNING,  # a loop that ends by `break` loses nothing
                    "%s: the loop was left in the middle of a batch (break, or an exception). The log ends at step %d, and "
                    "the batch is computed again when the run continues",
                    self.run,
                    self.journal.committed,
                )
        for hooks in self.hooks.values():
            hooks.release()
        for hook in self._unit.forward_hooks:
            hook.remove()
        self._unit.forward_hooks.clear()
        self.logged.phase = Closed(self._parts)
        _runs.discard(self)
        if is_orderly and not self._unit.running and not self._recovery.recheck.is_pending:
            self.journal.note_finished(self._loops.end)
        self._companions.release()
        self._resources.close(None if is_orderly else self._parts.settings.grace_seconds)


_runs: weakref.WeakSet[TrainingRun] = weakref.WeakSet()  # that are open


def _enter_child() -> None:
    for run in _runs:
        run.enter_child()


os.register_at_fork(after_in_child=_enter_child)
