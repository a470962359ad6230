"""Trials of `log="auto"` that end after a few units, and find what a test wants."""

from __future__ import annotations

from collections.abc import Callable

from tranlogs.training import cadence, rungs
from tranlogs.training.rungs import MeasuredRung


def shorten_trials(cost: float | None = None, put: Callable[..., object] = setattr) -> None:
    """Let a trial in this process be of three units each, a new one come with each checkpoint, and each boundary be recorded.

    Args:
        cost: what each trial finds, as a share of a step; None for what is measured.
        put: sets an attribute; `monkeypatch.setattr` where the process goes on with other tests.
    """
    for name, value in {"UNITS": 3, "_SKIPPED": 1}.items():
        put(rungs, name, value)
    for name in ("_GRADIENTS_SECONDS", "_INPUTS_SECONDS", "_INPUTS_SECONDS_MAX"):
        put(rungs, name, 0.0)
    put(cadence, "_SECONDS", 0.0)
    put(cadence, "_SHARE", 1e9)
    if cost is not None:
        decide = MeasuredRung._decide
        put(MeasuredRung, "_decide", lambda rung, _: decide(rung, cost))
