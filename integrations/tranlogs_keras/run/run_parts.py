"""The parts of a run that recovery, boundaries and loops share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tranlogs.training import Journal, LiveReport, Progress, Rung, RunResources

from ..backends import Backend
from ..capture.steps import StepCapture
from ..replay.redo import ReplayableState
from ..state.description import describe_environment
from ..state.variables import Variables


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of a run in this process.

    Attributes:
        run: folder of the run.
        model: the model that is trained, or an object that stands for several models.
        backend: Keras's backend.
        state: variables of models, optimizers and metrics.
        steps: logs steps and finds writes that no step made.
        resources: journal, monitor, shipping and the handler of signals.
        report: report of the recovery, with what became known since.
        environment: what rounding depends on. Filled before anything is written.
        rung: tells whether steps are logged with their tensors.
        progress: shows how far a replay is.
    """

    run: Path
    model: Any
    backend: Backend
    state: ReplayableState
    steps: StepCapture
    resources: RunResources
    report: LiveReport
    environment: dict[str, Any]
    rung: Rung
    progress: Callable[[], Progress | None]

    @property
    def journal(self) -> Journal:
        """The journal of this process."""
        return self.resources.journal

    @property
    def variables(self) -> Variables:
        """The variables of the run, by name."""
        return self.state.variables

    def describe_environment(self) -> None:
        """Record what rounding depends on, as it is now."""
        self.environment.update(describe_environment(self.model, self.backend, self.variables.optimizers))
