"""The parts of a run in this process: what recovery, boundaries and loops share, where the run stands, and how it begins."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tranlogs.base.config import fitting_segment_bytes
from tranlogs.base.errors import DataError
from tranlogs.records import Checkpoint, Record
from tranlogs.training import (
    Divergence,
    ExpectedWrites,
    Journal,
    LiveReport,
    Recovered,
    RecoveryReport,
    Rung,
    RunResources,
    Target,
    describe_replacement,
    forecast_inputs,
    forecast_trial,
    forecast_writes,
    recover,
)

from ..backends import Backend, arrays
from ..capture.steps import StepCapture
from ..settings import Settings
from ..state.state import KerasState
from ..state.variables import Variables

_log = logging.getLogger("tranlogs")


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of a run in this process.

    Attributes:
        state: variables of models, optimizers and metrics.
        steps: logs steps and finds writes that no step made.
        resources: journal, monitor, shipping and the handler of signals.
        report: report of the recovery, with what became known since.
    """

    run: Path
    state: KerasState
    steps: StepCapture
    resources: RunResources
    report: LiveReport

    @property
    def model(self) -> Any:
        """The model that is trained, or an object that stands for several models."""
        return self.state.variables.model

    @property
    def backend(self) -> Backend:
        """Keras's backend."""
        return self.state.backend

    @property
    def journal(self) -> Journal:
        """The journal of this process."""
        return self.resources.journal

    @property
    def rung(self) -> Rung:
        """Tells whether steps are logged with their tensors."""
        return self.steps.rung

    @property
    def variables(self) -> Variables:
        """The variables of the run, by name."""
        return self.state.variables


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """The newest checkpoint that can be read.

    Attributes:
        path: its folder.
        meta: what it holds besides tensors.
        boundary: the body of the boundary at which it was taken; of the newest one, if `end` is known.
        end: where the log ends, if that is known.
    """

    path: Path
    meta: dict[str, Any]
    boundary: dict[str, Any]
    end: Recovered | None = None

    def at_end(self, resources: RunResources) -> NewestCheckpoint:
        """Return the same with the end of the log behind it. Only what boundaries hold is read."""
        nothing = UntouchedState()
        end = recover(resources.journal.paths.folder, nothing, spare=resources.spare)
        return replace(self, boundary=nothing.body, end=end)


def find_newest_checkpoint(resources: RunResources) -> NewestCheckpoint | None:
    """Return the newest readable checkpoint; None if the run is new.

    A checkpoint that cannot be read is replaced by the copy in the store, if there is one.
    """
    journal = resources.journal
    for row in sorted(journal.catalog.checkpoints(), key=lambda row: row.sequence, reverse=True):
        path = journal.paths.checkpoints / row.name
        try:
            return _opened(path)
        except DataError as error:
            _log.debug("%s", error)
            if source := resources.spare.replace(row.name):
                journal.notes.append(describe_replacement(path, source))
                return _opened(path)
    return None


def _opened(path: Path) -> NewestCheckpoint:
    meta = read_meta(path)
    return NewestCheckpoint(path, meta, meta["boundary"])


def read_meta(path: Path) -> dict[str, Any]:
    """Return what the checkpoint in a folder holds besides tensors."""
    with Checkpoint(path) as checkpoint:
        found: dict[str, Any] = checkpoint.meta(make_array=arrays.from_array)
        return found


class UntouchedState:
    """Recovery of a run's place and of its last boundary only (`tranlogs.recovery.Recoverable`)."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {}

    def differences(self, checkpoint: Checkpoint) -> Sequence[str]:
        return []

    def restore(self, checkpoint: Checkpoint) -> None:
        self.set_auxiliary(checkpoint.meta(make_array=arrays.from_array)["boundary"])

    def redo(self, entries: Sequence[Record], tick: Callable[[int], None]) -> Divergence | None:
        return None

    def set_auxiliary(self, body: dict[str, Any]) -> None:
        self.body = body

    def decode(self, entry: Record) -> Any:
        return entry.body(make_array=arrays.from_array)

    def decode_boundary(self, entry: Record) -> dict[str, Any]:
        return entry.boundary(make_array=arrays.from_array)


def recover_to(parts: RunParts, position: Any) -> Recovered:
    """Bring the state to a position of the log, which is known to be there."""
    folder, spare = parts.journal.paths.folder, parts.resources.spare
    found = recover(folder, parts.state, Target(sequence=position.sequence), spare=spare)
    assert found is not None, "a run with a checkpoint holds something"
    found.require_position(position)
    return found


def open_resources(settings: Settings, model: Any) -> RunResources:
    """Open the journal of a run, and what runs beside it."""
    step_bytes = sum(math.prod(v.shape) * 4 for v in model.trainable_variables)
    return RunResources(
        settings.shared,
        framework="keras",
        adapt=arrays.adapt,
        segment_bytes=fitting_segment_bytes(step_bytes),
    )


def report_start(parts: RunParts, settings: Settings, *, ends: int = 0) -> None:
    """Add to the report of a new run how much it writes, and when its next checkpoint comes.

    `ends` further checkpoints are kept, at the ends of fits.
    """
    policy, rung, epochs = settings.shared.policy, parts.rung, settings.every_epoch
    state_bytes, trained = parts.state.nbytes(), sum(math.prod(v.shape) * 4 for v in parts.model.trainable_variables)
    step_bytes = max(trained if parts.state.log == "gradients" else state_bytes, 1)
    if not rung.logs_tensors:
        forecast = forecast_inputs(policy, at_epoch_ends=epochs)
    elif rung.is_measured and rung.overhead is not None:
        forecast = forecast_trial(policy, step_bytes, rung.overhead, at_epoch_ends=epochs)
    else:
        segment_bytes = parts.resources.config.segment_bytes
        writes = ExpectedWrites(step_bytes, state_bytes, segment_bytes, at_epoch_ends=epochs, more_checkpoints=ends)
        forecast = forecast_writes(policy, settings.run, writes, settings.retention.inner)
    parts.report.current = replace(parts.report.current or RecoveryReport(), forecast=forecast)
