"""The parts of a run that its recovery, loops and boundaries share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tranlogs.training import Journal, LiveReport, Restarts, Rung, RunResources, RunSettings, ScalarHistory

from ..capture.foreign_writes import ForeignWrites
from ..capture.logged_run import LoggedRun
from ..capture.optimizer_hooks import OptimizerHooks
from ..offline.recorded_state import LiveState
from ..state import environment
from ..state.auxiliary import Auxiliary
from ..state.compatibility import describe_modules
from .rank_coordinator import RankCoordinator


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of a run in this process.

    Attributes:
        settings: of the run.
        resources: journal, monitor, shipping and the handler of signals.
        modules: by prefix.
        state: parameters, optimizers and buffers.
        hooks: of the optimizers, by name.
        logged: the run as these hooks use it, with its phase.
        auxiliary: what boundaries commit besides.
        coordinator: connects the processes that train together.
        environment: what rounding depends on, as it is now.
        scalars: that the loop has logged.
        report: of the recovery, with what became known since.
        restarts: names what of the script starts over.
        rung: tells whether tensors are logged.
    """

    settings: RunSettings
    resources: RunResources
    modules: dict[str, torch.nn.Module]
    state: LiveState
    hooks: dict[str, OptimizerHooks]
    logged: LoggedRun
    auxiliary: Auxiliary
    coordinator: RankCoordinator
    environment: dict[str, Any]
    scalars: ScalarHistory
    report: LiveReport
    restarts: Restarts
    rung: Rung

    @property
    def journal(self) -> Journal:
        """The journal of this process."""
        return self.resources.journal

    @property
    def writes(self) -> ForeignWrites:
        """What finds and logs writes that no step made."""
        return self.logged.writes

    def install_hooks(self) -> None:
        """Install the hooks of a step that is logged with its tensors, or of one that is only counted."""
        for hooks in self.hooks.values():
            hooks.install()

    def describe_environment(self) -> None:
        """Record what rounding depends on, as it is now: a script may set its threads after it made the optimizer."""
        self.environment.update(environment.describe(self.state.optimizers))
        self.environment.update(settings=describe_modules(self.modules), schedulers=self.auxiliary.built)
        self.coordinator.describe(self.environment)
