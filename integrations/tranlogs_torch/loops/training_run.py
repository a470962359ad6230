"""One training run in this process: makes its parts, and connects them with the hooks of optimizers and with loops."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from tranlogs.base.errors import UsageError
from tranlogs.training import (
    LiveReport,
    LoopRecord,
    Progress,
    RecoveryReport,
    Restarts,
    Rung,
    RunResources,
    RunSettings,
    ScalarHistory,
    name_loop,
)

from ..capture.foreign_writes import ForeignWriteDetector
from ..capture.forward_hook import ForwardHook
from ..capture.optimizer_hooks import OptimizerHooks
from ..capture.staging import Staging
from ..data.position.epoch import Epoch
from ..distributed.process_group import demand_group
from ..offline.live_state import LiveState
from ..sharding.unsupported import demand_known_modules
from ..state import naming
from ..state.auxiliary.auxiliary import Auxiliary
from ..state.auxiliary.loader_positions import LoaderPositions
from ..tensors import arrays
from .after_images import WriteLog
from .boundaries import Boundaries
from .companions import Companions
from .logged_steps import LoggedSteps
from .loops import Loops
from .ranks.coordinator_choice import make_coordinator
from .recovery.recovery import Recovery
from .run_parts import RunParts
from .script_values import make_framework
from .tracking import Tracking

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
        state: parameters, optimizers and buffers.
        auxiliary: what boundaries commit besides.
        coordinator: connects the processes that train together.
        journal: of this process.
        logged_steps: takes the steps from the hooks of optimizers.
        tracking: takes what the script and its trainer declare.
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
        modules = naming.as_modules(models)
        demand_known_modules(modules)
        report = LiveReport(self.run)
        self.state = LiveState(modules, {}, lambda body: self._recovery.set_auxiliary(body), fingerprint=settings.fingerprint)
        self._recovery: Recovery
        self._loops: Loops
        self._boundaries: Boundaries
        self._companions: Companions
        positions = LoaderPositions(
            self.boundary,
            lambda position: self._loops.opening(position),
            report.warn,
            lambda position: self._companions.adopt(position),
            worker_seeds,
        )
        self.auxiliary = Auxiliary(self.state, positions, report.warn)
        self._write_log = WriteLog(self.run)
        hooks: dict[str, OptimizerHooks] = {}
        environment: dict[str, Any] = {}  # filled with the optimizers, before anything is written
        self.coordinator = make_coordinator(self.state, settings.policy, rank, copies)
        rung = rung or Rung(logs_tensors=True)
        if not (rung.logs_tensors or self.coordinator.is_single):
            raise UsageError(
                f'{self.run}: log="inputs" is for a process that trains alone: processes that train together would have to '
                'record the same boundaries. Use log="gradients"'
            )
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
        self._parts = RunParts(
            settings,
            self._resources,
            modules,
            self.state,
            hooks,
            ForeignWriteDetector(self.state, hooks, self._write_log.note_late_write),
            self.auxiliary,
            self.coordinator,
            environment,
            ScalarHistory(),
            report,
            Restarts(report, make_framework(modules, hooks, self.auxiliary)),
            rung if self.coordinator.is_single else Rung(logs_tensors=True),
        )
        self._write_log.attach(self._parts, staging)
        self._recovery = Recovery(self._parts, lambda: self._boundaries.landed(), lambda: self._boundaries.set_back())
        self._loops = Loops(self._parts, self)
        self._companions = Companions(self._parts, self._recovery, self._loops)
        self._boundaries = Boundaries(self._parts, self._recovery, self._loops, self._companions, self._write_log)
        self.logged_steps = LoggedSteps(self._parts, staging, self._recovery, self._loops, self._boundaries, self._write_log)
        self.tracking = Tracking(self._parts, self._recovery)
        self._forward_hooks = [ForwardHook(module, self._boundaries.before_forward) for module in modules.values()]
        atexit.register(self._at_exit)

    # The parts of the run.

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """The modules that are trained, by prefix."""
        return self._parts.modules

    @property
    def hooks(self) -> dict[str, OptimizerHooks]:
        """The hooks of the optimizers, by name."""
        return self._parts.hooks

    @property
    def run_id(self) -> str:
        """The id of the run, which all ranks share."""
        return self._recovery.run_id

    @property
    def report(self) -> LiveReport:
        """The report of the recovery."""
        return self._parts.report

    @property
    def restarts(self) -> Restarts:
        """What names values of the script that start over."""
        return self._parts.restarts

    @property
    def scalars(self) -> ScalarHistory:
        """The scalars that the loop has logged."""
        return self._parts.scalars

    @property
    def environment(self) -> dict[str, Any]:
        """The environment on which rounding depends, as it is now."""
        return self._parts.environment

    @property
    def steps_since_boundary(self) -> int:
        """Number of steps and after-images since the last boundary."""
        return self._boundaries.steps_since_boundary

    # Putting the run together.

    def add(self, hooks: OptimizerHooks) -> None:
        """Add an optimizer under its name."""
        if self._recovery.has_begun:
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
        self.state.optimizers[hooks.name] = hooks.inner
        self.state.named.refresh()
        self._parts.describe_environment()

    # Recovery.

    def refresh_report(self) -> None:
        """Make the report of the recovery again: what was missing then may be tracked or declared now."""
        self._recovery.report.refresh()

    def recover(self, step: int | None = None, progress: Progress | None = None) -> RecoveryReport:
        """Bring everything back to the newest boundary, or to `step`. A fresh run starts from what the script has built.

        Raises:
            UsageError: training has begun.
        """
        if self._recovery.has_begun:
            report = self.report.current
            if report is not None and self.steps_since_boundary == 0 and self.journal.step == report.step:
                return report  # a notebook cell run twice
            raise UsageError("recover() must come before the first step")
        self._parts.restarts.note_start()
        report = self._recovery.recover(step, progress)
        self._loops.note_start()
        return report

    def begin(self) -> None:
        """Begin a fresh run with a checkpoint of what was built, unless training has begun."""
        self._recovery.begin()

    def settle_script_changes(self, opens: Literal["own", "next", ""]) -> bool:
        """Let what the script has changed since the recovery stand; return False if no unit is to be computed again."""
        return self._recovery.settle_script_changes(opens)

    def note_own_loop(self) -> None:
        """Note that a loop of `LoggedOptimizer` begins."""
        self._recovery.report.note_own_loop()

    def commit_implicit(self) -> None:
        """Commit the last step outside of all loops, which takes no part in a unit of a loop."""
        self._boundaries.commit_implicit(is_before_forward=True)

    # State.

    @property
    def is_closed(self) -> bool:
        """True if `close` was called in this process."""
        return self.journal.is_closed

    @property
    def is_active(self) -> bool:
        """True if steps of this process are to be logged."""
        return self.journal.is_writer

    @property
    def is_logging(self) -> bool:
        """True if training has begun in this process, and the run is open."""
        return self._recovery.has_begun and self.is_active

    def request_checkpoint(self) -> bool:
        """Ask for a checkpoint at the next boundary; False if logging is suspended."""
        self._write_log.wants_checkpoint = True
        return not self.journal.is_suspended

    def note_writes(self) -> None:
        """Log writes that no step made, as a part of the running unit."""
        self._boundaries.note_writes()

    def expect_end(self) -> None:
        """Note that a loop ends with the next boundary."""
        self._boundaries.expect_end()

    def leave_loop(self) -> None:
        """Note that a loop was left."""
        self._boundaries.leave_loop()

    def boundary(self, asking: object = None) -> None:
        """Commit what came since the last boundary: the loop `asking` (None: whichever runs) wants its next batch."""
        self._boundaries.boundary(asking)

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

    def read_newest_loop(self) -> LoopRecord:
        """Return the loop of the newest boundary of the log, if the unit before it is computed again; else an empty record."""
        return self._recovery.read_newest_loop()

    @property
    def runs_again(self) -> bool:
        """True while the script's code before the loop in which the run stood runs once more."""
        return self._loops.runs_again

    def is_as_recovered(self) -> bool:
        """Return True if the run was recovered, and nothing was logged since."""
        return self._boundaries.is_as_recovered()

    def find_other_writes(self) -> list[str]:
        """Return the names of optimizers whose state or groups something other than a step has written."""
        return self._write_log.find_other_writes()

    # The end.

    def close(self) -> None:
        """Commit what is complete, seal the log, release the run."""
        error = sys.exc_info()[1]
        is_complete = self._loops.end == "complete" and not self._loops.running and not self.steps_since_boundary
        self._close(is_orderly=error is None or is_complete or id(error) == self._boundaries.errors_at_step[0])

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        if hasattr(sys, "ps1"):  # an interactive session, which an error does not end
            is_orderly = not self.steps_since_boundary or id(error) == self._boundaries.errors_at_step[1]
        else:
            is_orderly = error is None
        self._close(is_orderly=is_orderly)

    def _close(self, *, is_orderly: bool) -> None:
        atexit.unregister(self._at_exit)
        self.coordinator.leave()
        if self.is_active and self._recovery.has_begun:
            if is_orderly:
                self._parts.restarts.close()
                self._boundaries.commit_implicit(is_before_forward=True)
                self._loops.note_unreached()
                self._recovery.report.note_end()
                self._recovery.recheck.note_end()
            if self.steps_since_boundary:
                _log.log(
                    logging.INFO if is_orderly else logging.WARNING,  # a loop that ends by `break` loses nothing
                    "%s: the loop was left in the middle of a batch (break, or an exception). The log ends at step %d, and "
                    "the batch is computed again when the run continues",
                    self.run,
                    self.journal.committed,
                )
        for hooks in self.hooks.values():
            hooks.release()
        for hook in self._forward_hooks:
            hook.release()
        if is_orderly and not self._loops.running and self.report.recheck != "pending":
            self.journal.note_finished(self._loops.end)
        self._companions.release()
        self._resources.close(None if is_orderly else self._parts.settings.grace_seconds)
