"""The snapshot of a replayed state, equal byte for byte to the one that the training script would have taken there.

Tensors come from the replay, auxiliary state from the boundary's record, and what a script alone knows (names in the models'
state dicts, hyper-parameters as first given) from the checkpoint before: it is refused where one of these may have changed.
"""

from __future__ import annotations

from typing import Any

from tranlogs.base.errors import UsageError
from tranlogs.base.types import AnyArray
from tranlogs.records import Snapshot, encode_parts
from tranlogs.training import Recovered

from ..sharding.shards import array_of
from ..state import environment
from ..state.scalars import ScalarHistory
from ..tensors.arrays import adapt, to_array
from .recorded_state import RecordedState


def snapshot(state: RecordedState, found: Recovered) -> Snapshot:
    """See the module; encoded.

    Raises:
        UsageError: it cannot be known to be the same.
    """
    for why in _doubts(state, found):
        raise UsageError(why)
    before, body = state.meta, found.body
    tensors: dict[str, AnyArray] = {f"param/{name}": array_of(p, p) for name, p in state.parameters.items()}
    tensors |= {f"buffer/{name}": to_array(b) for name, b in body["buffers"].items()}
    optimizers: dict[str, Any] = {}
    for which, about in before["optimizers"].items():
        held, rest = state.state_tensors(which)
        tensors |= {name: array for name, array in held if array is not None}
        optimizers[which] = {
            "class": about["class"],
            "groups": body["after"][which],
            "params": state.group_names(which),
            "state": rest,
            "given": state.given[which],
        }
    curves = ScalarHistory()
    curves.unpack(before["boundary"].get("scalars", {}))
    curves.extend(found.scalars)
    meta = {
        "optimizers": optimizers,
        "modules": before["modules"],
        "boundary": {**body, "scalars": curves.pack()},
        "born": before["born"],
    }
    made = Snapshot(tensors, meta)
    made.encode(adapt)
    return made


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
