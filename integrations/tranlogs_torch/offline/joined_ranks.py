"""A run whose parameters were sharded, put together without its script: each rank's log is redone, then the parts are joined.

The redo of a part needs no other part, so ranks are redone one after the other, all to the step on which all can land.
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
from ..tensors.placement import Place
from .recorded_state import RecordedState

_ATTEMPTS_MAX = 1000

Held = tuple[Place, torch.Tensor]


def recover_joined(
    reader: SingleReader, make: Callable[[], RecordedState], step: int | None, progress: Progress | None
) -> tuple[RecordedState, Recovered] | None:
    """The whole state, and how the rank got there whose journal was given. None if the run holds nothing yet.

    Args:
        reader: reads the journals of all.
        make: gives a state to be restored.
        step: where to land; None for the newest step.
        progress: told what is done.

    Raises:
        RecoveryError: there is no step on which all ranks can land.
        UsageError: a part is in no journal.
    """
    agree(reader.generation.summaries, Damage(), step)  # says what is missing
    states, landings = _all_on_one_step(reader, make, step, progress)
    if not landings:
        return None
    state, found = states[reader.rank], landings[reader.rank].recovered
    assert found is not None
    for other, landing in zip(states, landings, strict=True):
        recovered = landing.recovered
        assert recovered is not None
        state.fingerprint_kinds |= other.fingerprint_kinds
        state.stale |= other.stale
        found.notes += landing.notes
        if recovered is not found:
            found.notes += recovered.notes
        if recovered.divergence and (found.divergence is None or recovered.divergence.step < found.divergence.step):
            found.divergence = recovered.divergence
    found.notes.append(
        f"the parts of {reader.world} ranks were redone and joined; buffers and what was tracked are those of "
        f"rank {reader.rank}"
    )
    found.notes = list(dict.fromkeys(found.notes))
    _join(state, states)
    return state, found


def _all_on_one_step(
    reader: SingleReader, make: Callable[[], RecordedState], step: int | None, progress: Progress | None
) -> tuple[list[RecordedState], list[GroupRecovered]]:
    """Damage that one rank meets makes it land earlier: then the others do so, too."""
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
    raise AssertionError("the ranks do not settle on one step")


def _join(state: RecordedState, states: Sequence[RecordedState]) -> None:
    """Put whole parameters, with whole optimizer state, in the place of a rank's parts."""
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
    exchange(state, wholes, lambda name, key, value: value)
    for which, optimizer in state.optimizers.items():  # one of several ranks may have had some of its parameters
        for group, names in zip(optimizer.param_groups, state.meta["optimizers"][which].get("all", ()), strict=False):
            group["params"][:] = [state.parameters[name] for name in names]
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


def _joined(name: str, held: Iterable[Held]) -> torch.Tensor:
    """The whole of which these are parts; the same part may be there several times."""
    parts = {place: tensor for place, tensor in held if tensor.numel()}
    shape, first = next(iter(parts)).whole, next(iter(parts.values()))
    if sum(map(torch.Tensor.numel, parts.values())) != math.prod(shape):
        raise UsageError(
            f"{name}: the journals hold {sum(map(torch.Tensor.numel, parts.values()))} of its {math.prod(shape)} elements"
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
