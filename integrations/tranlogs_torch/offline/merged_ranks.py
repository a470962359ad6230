"""Recovery of a run with sharded parameters without its script: each rank's log is redone, then the parts are joined.

The redo of a part needs no other part. So the ranks are redone one after the other, all to one step that every rank reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tranlogs.base.errors import UsageError
from tranlogs.base.types import Piece
from tranlogs.ranks import Damage, GroupRecovered, SingleReader, agree
from tranlogs.training import Progress, Recovered

from ..sharding.shards import is_alike, is_part, place_of
from ..state.plain_tensors import exchange
from ..tensors.arrays import Place
from .recorded_state import RecordedState

_ATTEMPTS_MAX = 1000

PlacedPart = tuple[Place, torch.Tensor]


def recover_joined(
    reader: SingleReader, make: Callable[[], RecordedState], step: int | None, progress: Progress | None
) -> tuple[RecordedState, Recovered] | None:
    """Recover all ranks and join their parts.

    Args:
        reader: reads the journals of all ranks.
        make: makes a state that can be restored.
        step: the step to recover; None for the newest step.
        progress: called with the progress of the work.

    Returns:
        The joined state, and the recovery of the rank whose journal the reader was given; None if the run holds nothing yet.

    Raises:
        RecoveryError: no step can be recovered on all ranks.
        UsageError: no journal holds some part.
    """
    agree(reader.generation.summaries, Damage(), step)  # raises an error that names what is missing
    states, landings = _recover_to_one_step(reader, make, step, progress)
    if not landings:
        return None
    state, found = states[reader.rank], landings[reader.rank].recovered
    assert found is not None
    for other, landing in zip(states, landings, strict=True):
        recovered = landing.recovered
        assert recovered is not None
        state.redone.kinds |= other.redone.kinds
        state.redone.stale |= other.redone.stale
        found.notes += landing.notes
        if recovered is not found:
            found.notes += recovered.notes
        if recovered.divergence and (found.divergence is None or recovered.divergence.step < found.divergence.step):
            found.divergence = recovered.divergence
    found.notes.append(
        f"the parts of {reader.world} ranks were redone and joined; buffers and tracked objects are those of rank {reader.rank}"
    )
    found.notes = list(dict.fromkeys(found.notes))
    _join(state, states)
    return state, found


def _recover_to_one_step(
    reader: SingleReader, make: Callable[[], RecordedState], step: int | None, progress: Progress | None
) -> tuple[list[RecordedState], list[GroupRecovered]]:
    """Recover all ranks to one step. If damage ends one rank's recovery earlier, recover the other ranks to that step, too."""
    for _ in range(_ATTEMPTS_MAX):
        states, landings = [], []
        for summary in reader.generation.summaries:
            state = make()
            landing = reader.for_rank(summary.rank).make_recovery(state).recover(step, progress)
            if landing is None or landing.recovered is None:
                return [], []
            states.append(state)
            landings.append(landing)
        steps = {landing.recovered.position.step for landing in landings if landing.recovered is not None}
        if len(steps) == 1:
            return states, landings
        step = min(steps)
    raise AssertionError("the ranks do not agree on a step")


def _join(state: RecordedState, states: Sequence[RecordedState]) -> None:
    """Replace the parts that a rank holds by whole parameters with whole optimizer state."""
    sharded = [name for name in state.parameters if any(is_part(other.parameters[name]) for other in states)]
    wholes: dict[str, torch.Tensor] = {}
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    for name in sharded:
        parts = [other.parameters[name] for other in states]
        places = [place_of(part) or _whole(part) for part in parts]
        joined = _joined(name, zip(places, (part.detach() for part in parts), strict=True))
        wholes[name] = torch.nn.Parameter(joined, requires_grad=parts[0].requires_grad)
        for which in state.optimizers:
            held = [other.optimizers[which].state.get(part, {}) for other, part in zip(states, parts, strict=True)]
            keys = dict.fromkeys(key for one in held for key in one)
            if keys:
                kept[which, name] = {key: _joined_state(f"{name} ({key})", key, held, parts, places) for key in keys}
    exchange(state.named, wholes, lambda name, key, value: value)
    for (which, name), values in kept.items():
        state.optimizers[which].state[wholes[name]] = values


def _joined_state(
    what: str, key: str, held: Sequence[dict[str, Any]], parts: Sequence[torch.Tensor], places: Sequence[Place]
) -> Any:
    there = [(one[key], part, place) for one, part, place in zip(held, parts, places, strict=True) if key in one]
    value = there[0][0]
    if not torch.is_tensor(value) or not all(is_alike(key, one, part) for one, part, _ in there):
        return value
    return _joined(what, ((place, one) for one, _, place in there))


def _joined(name: str, held: Iterable[PlacedPart]) -> torch.Tensor:
    """Return the tensor that the parts form. The same part may be given several times."""
    parts = {place: tensor for place, tensor in held if tensor.numel()}
    shape, first = next(iter(parts)).whole, next(iter(parts.values()))
    if sum(map(torch.Tensor.numel, parts.values())) != math.prod(shape):
        raise UsageError(
            f"{name}: the journals contain {sum(map(torch.Tensor.numel, parts.values()))} of its {math.prod(shape)} elements"
        )
    whole = torch.empty(shape, dtype=first.dtype, device=first.device)
    for (_, piece), tensor in parts.items():
        if piece.kind == "flat":
            whole.view(-1)[piece.offset[0] : piece.offset[0] + piece.length[0]] = tensor.reshape(-1)
            continue
        whole[tuple(slice(at, at + size) for at, size in zip(piece.offset, piece.length, strict=True))] = tensor
    return whole


def _whole(tensor: torch.Tensor) -> Place:
    shape = tuple(tensor.shape)
    return Place(shape, Piece("box", (0,) * len(shape), shape))
