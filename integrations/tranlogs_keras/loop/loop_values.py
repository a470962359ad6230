"""Values of Keras and its backend in what a loop remembers (tensors), and what the run keeps of a script with such a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from tranlogs.training import Framework, LoopState, Unstorable

from .. import keras_internals
from ..backends import arrays
from ..state.script_values import read_array, version_of
from .loop_members import Members

_WITH_VARIABLES = (
    keras.Layer,
    keras.Variable,
    keras.metrics.Metric,
    keras.random.SeedGenerator,
    keras_internals.BaseOptimizer,
)


class LoopValues:
    """Stores and restores tensors of the backend: ("tensor", dtype, requires_grad, array)."""

    def store(self, value: Any) -> Any:
        """Return the stored form of a tensor, or of an array whose dtype is not numpy's own; None for any other value."""
        if isinstance(value, _WITH_VARIABLES) or (hasattr(value, "assign") and hasattr(value, "numpy")):
            raise Unstorable(f"is a {type(value).__name__}, which has variables. Track it: optimizer.track(name=...)")
        if isinstance(value, np.ndarray):
            return value if value.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else None
        if not keras.ops.is_tensor(value):
            return None
        held = np.array(keras.ops.convert_to_numpy(value))
        if held.dtype.hasobject or held.dtype.kind in "SU":
            raise Unstorable(f"is a tensor of {value.dtype}, which cannot be stored")
        return "tensor", keras.backend.standardize_dtype(value.dtype), bool(getattr(value, "requires_grad", False)), held

    def count_bytes(self, value: Any) -> int:
        """Return the size of the array that a stored value holds."""
        return int(value[3].nbytes) if type(value) is tuple else 0

    def restore(self, old: Any, stored: Any) -> Any:
        """Return the tensor of a stored one."""
        if type(stored) is not tuple or stored[0] != "tensor":
            raise Unstorable("cannot be read: another version of TranLogs has written it")
        made = keras.ops.convert_to_tensor(stored[3].copy(), dtype=stored[1])
        return made.requires_grad_() if stored[2] else made

    def adapt(self, value: Any) -> Any:
        """Prepare a stored value for the encoder of trees."""
        return arrays.adapt(value)


def make_framework(members: Members) -> Framework:
    """Return what Keras knows of the values of a script with a loop of its own."""

    def kept() -> Iterator[Any]:
        yield from members.optimizers.values()
        for state in members.tracked.values():
            if isinstance(state, LoopState):
                yield from state.objects

    def tracked() -> Iterator[tuple[Any, Any]]:
        for thing in members.tracked.values():
            if not isinstance(thing, LoopState) and hasattr(thing, "state_dict"):
                yield thing, thing.state_dict

    def remembered() -> Mapping[str, Any]:
        states = [state for state in members.tracked.values() if isinstance(state, LoopState)]
        return {name: value for state in states for name, value in vars(state.namespace).items()}

    return Framework(read_array, kept, tracked, remembered, read_version=version_of(lambda: members.variables))
