"""The snapshot of a replayed state, equal byte for byte to the one that the callback would have taken there.

Variables come from the replay, the rest from the boundary's record, and what the script alone knows of its model from the
checkpoint before: it is refused where one of these may have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tranlogs.base.errors import UsageError
from tranlogs.records import Snapshot, encode_parts
from tranlogs.training import Recovered

from ..backends.arrays import adapt, to_array
from ..state import environment

if TYPE_CHECKING:
    from .recorded_state import RecordedState


def snapshot(state: RecordedState, found: Recovered) -> Snapshot:
    """See the module; encoded.

    Raises:
        UsageError: it cannot be known to be the same.
    """
    for why in _doubts(state, found):
        raise UsageError(why)
    slots = state.variables.by_name
    names = [name for name, _, _ in state.meta["variables"] if not name.startswith("metric/")]
    values = state.backend.values_of([slots[name].variable for name in names])
    meta = {**state.meta, "attributes": state.optimizer_attributes, "boundary": state.plain}
    made = Snapshot({name: to_array(value) for name, value in zip(names, values, strict=True)}, meta)
    made.encode(adapt)
    return made


def _doubts(state: RecordedState, found: Recovered) -> list[str]:
    """What keeps the snapshot from being known as the same, in words."""
    body, before = state.plain, state.meta
    if not body:
        return ["nothing was redone"]
    doubts = environment.compare(state.recorded_environment, state.environment_now())
    if before["kept"]:
        doubts.append("its checkpoints hold the place of a tf.data iterator, which the script alone has")
    if body["log"] != before["log"]:
        doubts.append(f"{body['log']} are logged since the last checkpoint, and were {before['log']} before")
    metrics = {name for name, _, _ in before["variables"] if name.startswith("metric/")}
    if set(body["metrics"]) != metrics:
        doubts.append("the model's metrics are others than at the last checkpoint, or a fit ends there")
    if encode_parts(body, adapt) != found.parts:
        doubts.append("what the boundary committed is not the same when it is written again")
    return doubts
