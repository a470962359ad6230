"""Whether the snapshot of a replayed state equals, byte for byte, the one that the training script would have taken there.

It is refused where what a script alone knows may have changed since the checkpoint before.
"""

from __future__ import annotations

from tranlogs.base.errors import UsageError
from tranlogs.records import Snapshot, encode_parts
from tranlogs.training import Recovered

from ..state import environment
from ..tensors.arrays import adapt
from .recorded_state import RecordedState


def snapshot(state: RecordedState, found: Recovered) -> Snapshot:
    """Return the encoded snapshot.

    Raises:
        UsageError: it cannot be known to be the same.
    """
    for why in _doubts(state, found):
        raise UsageError(why)
    return state.derive(found)


def _doubts(state: RecordedState, found: Recovered) -> list[str]:
    """What keeps the snapshot from being known as the same, in words."""
    body, before = found.body, state.meta
    if not body:
        return ["nothing was redone"]
    doubts = environment.compare(state.recorded_environment, environment.describe(state.optimizers))
    kept = set(before["boundary"]["buffers"])
    doubts += [f"buffer {name} came or went since the last checkpoint" for name in kept ^ set(body["buffers"])]
    added = [name for name in state.parameters if name not in state.restored]
    doubts += [f"parameter {name} was added since the last checkpoint" for name in added]
    if before["optimizers"].keys() != body["after"].keys():
        doubts.append("an optimizer was added since the last checkpoint")
    if encode_parts(body, adapt) != found.parts:
        doubts.append("what the boundary committed is not the same when it is written again")
    return doubts
