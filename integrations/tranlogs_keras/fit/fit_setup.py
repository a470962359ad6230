"""Put the parts of a logged fit together, and require that it is the fit of the run, before the run is recovered or begun."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tranlogs.base.config import fitting_segment_bytes
from tranlogs.base.errors import UsageError
from tranlogs.records import Checkpoint
from tranlogs.training import LiveReport, Rung, RunResources

from .. import keras_internals
from ..backends import Backend, arrays
from ..capture.steps import StepCapture
from ..data import other_data
from ..replay.redo import ReplayableState
from ..run.log_choice import LogChoice
from ..run.newest_checkpoint import NewestCheckpoint
from ..run.recovery import ScriptChanges
from ..run.run_parts import RunParts
from ..run_matching import FinishedFits, changed_rates, check_identity, compare_identities
from ..settings import Settings
from ..state import environment
from ..state.architecture import describe_model
from ..state.state import plain_attributes
from ..state.variables import Variables
from .earlier_fits import identity_of

_log = logging.getLogger("tranlogs")

finished = FinishedFits()


def open_resources(settings: Settings, model: Any, recorded_environment: dict[str, Any]) -> RunResources:
    """Open the journal of a fit, and what runs beside it."""
    step_bytes = sum(math.prod(v.shape) * 4 for v in model.trainable_variables)
    return RunResources(
        settings.shared,
        framework="keras",
        environment=recorded_environment,
        adapt=arrays.adapt,
        rank=settings.rank,
        segment_bytes=fitting_segment_bytes(step_bytes),
    )


def make_parts(
    model: Any,
    backend: Backend,
    settings: Settings,
    resources: RunResources,
    report: LiveReport,
    recorded_environment: dict[str, Any],
    *,
    recorded: dict[str, Any] | None,
    rung: Rung,
    expects: Callable[[], bool],
) -> tuple[RunParts, LogChoice, bool]:
    """Return the parts of a fit, the form of its log, and whether steps are split into gradients and update.

    Args:
        model: that is fitted, with all variables made.
        backend: Keras's.
        settings: of the run.
        resources: of the run.
        report: receives warnings.
        recorded_environment: is filled with what rounding depends on.
        rung: tells whether tensors are logged.
        recorded: the description in the newest checkpoint, if this fit continues from it.
        expects: whether a batch was handed out for the next step.
    """
    log, why = settings.choose_log(model, backend)
    splits = log == "gradients"
    if recorded is not None and "inputs" not in (log, recorded["log"]):  # as the run has found out
        log, splits = recorded["log"], recorded["splits"]
    if why and recorded is None:
        _log.warning("%s: weights are logged, not gradients: %s", settings.run, why)
    variables = Variables(model, backend, is_whole=log == "weights")
    state = ReplayableState(variables, backend, log, settings.shared.fingerprint)
    state.optimizer_attributes = plain_attributes(variables.optimizers)
    state.environment = environment.describe(model, backend, variables.optimizers)
    state.about = {**describe_model(model, variables), "splits": splits}
    recorded_environment.update(state.environment)
    can_change = not keras_internals.has_own_train_step(model)
    form = LogChoice(settings.run, state, resources.journal, report, can_change=can_change)
    steps = StepCapture(
        state, resources.journal, rung, expects, form.give_up_gradients, form.note_late_write, form.note_random_operations
    )
    parts = RunParts(
        settings.run, model, backend, state, steps, resources, report, recorded_environment, rung, settings.progress
    )
    return parts, form, splits


def require_same_fit(
    parts: RunParts, newest: NewestCheckpoint, identity: dict[str, Any], number: int, epochs: int, *, accepts_changes: bool
) -> ScriptChanges:
    """Return what differs from the recorded fit of this number, if the user accepts changes.

    Only the newest fit of a run may be given more epochs: those of a finished one would never be trained.

    Raises:
        UsageError: something differs, and is not accepted.
    """
    boundary = newest.boundary
    held = boundary["position"]["fit"]
    recorded = boundary["identity"] if held == number else identity_of(boundary["earlier"], number) if held > number else None
    changes = [] if recorded is None else compare_identities(recorded, identity)
    done = boundary["earlier"][number]["epochs"] if held > number else None
    if done is not None and epochs > done:
        changes.append(
            f"fit {number + 1} was finished with epochs={done}, now it has epochs={epochs}, and the run stands in fit "
            f"{held + 1}: train the other epochs by a new fit behind the others"
        )
    if not (changes and held == number and _has_other_variables(parts, newest)):
        if not accepts_changes:
            check_identity(parts.run, changes)
        finished.check(parts.run, parts.model)
    return ScriptChanges(changes, {} if recorded is None else changed_rates(recorded, identity))


def require_same_data(run: Path, recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what of the data is not as it was, one sentence each.

    Raises:
        UsageError: a position in the recorded data means nothing in these.
    """
    if recorded["kind"] != now["kind"]:
        raise UsageError(
            f"{run}: the data were {recorded['kind']}, now they are {now['kind']}. A position in one kind has no meaning in "
            "the other. Give fit the same kind of data, and TranLogsCallback the same data_order, as the run had"
        )
    return other_data(recorded, now)


def _has_other_variables(parts: RunParts, newest: NewestCheckpoint) -> bool:
    """Return True if recovery will refuse the model, and name each variable."""
    with Checkpoint(newest.path) as checkpoint:
        return bool(parts.state.differences(checkpoint))
