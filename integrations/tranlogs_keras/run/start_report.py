"""The report of a run that begins."""

from __future__ import annotations

import math
from dataclasses import replace

from tranlogs.training import ExpectedWrites, RecoveryReport, RetentionPolicy, RunSettings, forecast_inputs, forecast_writes

from .run_parts import RunParts


def report_start(
    parts: RunParts, settings: RunSettings, *, every_epoch: bool, retention: RetentionPolicy, ends: int = 0
) -> None:
    """Add to the report of a new run how much it writes, and when its next checkpoint comes.

    Args:
        parts: of the run.
        settings: of the run.
        every_epoch: whether a checkpoint is taken at the end of each epoch.
        retention: which checkpoints are kept.
        ends: number of further checkpoints that are kept, at the ends of fits.
    """
    if not parts.rung.logs_tensors:
        forecast = forecast_inputs(settings.policy, at_epoch_ends=every_epoch)
        parts.report.current = replace(parts.report.current or RecoveryReport(), forecast=forecast)
        return
    state, trained = parts.state, sum(math.prod(v.shape) * 4 for v in parts.model.trainable_variables)
    state_bytes = state.nbytes()
    writes = ExpectedWrites(
        step_bytes=max(trained if state.log == "gradients" else state_bytes, 1),
        state_bytes=state_bytes,
        segment_bytes=parts.resources.config.segment_bytes,
        at_epoch_ends=every_epoch,
        more_checkpoints=ends,
    )
    forecast = parts.rung.qualify(forecast_writes(settings.policy, settings.run, writes, retention))
    parts.report.current = replace(parts.report.current or RecoveryReport(), forecast=forecast)
