"""Variables of the script's loops that start over at each start: which values and objects of Keras count."""

from __future__ import annotations

from typing import Any

import keras

from tranlogs.training import LiveReport, LoopState, RecoveryReport, UnkeptVariables

from .loop_members import Members


def make_unkept_variables(report: LiveReport, members: Members) -> UnkeptVariables:
    """Return what names the variables that a run does not keep."""

    def is_value(value: Any) -> bool:
        """Return True for a tensor of the backend that is no variable."""
        return not hasattr(value, "assign") and not isinstance(value, keras.KerasTensor) and keras.ops.is_tensor(value)

    def is_kept(value: Any) -> bool:
        """Return True for what is tracked, and for the optimizer and the report, which follow the run."""
        if isinstance(value, RecoveryReport) or type(value).__module__.startswith("tranlogs_keras"):
            return True
        tracked = list(members.tracked.values())
        tracked += [thing for state in tracked if isinstance(state, LoopState) for thing in state.objects]
        return any(value is one for one in [*tracked, *members.optimizers.values()])

    return UnkeptVariables(report, is_value, is_kept)
