"""A run without the script that trained it: replayed, described, exported.

Parameters are made as the checkpoint describes them, optimizers from torch's own classes; what follows is the recovery
of a live run, so the bits are the same. Only what code alone can make is missing: the model itself, and what was
tracked; their states are here as plain values.

If parameters are sharded, each rank's log is redone, then the parts are joined. The redo of a part needs no other part. So the
ranks are redone one after the other, all to one step that every rank reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note
from tranlogs.base.types import Piece
from tranlogs.ranks import Damage, GroupRecovered, SingleReader, agree, is_of_group, is_sharded, read_environment
from tranlogs.records import Checkpoint
from tranlogs.training import LoopRecord, OfflineReplay, Progress, Recovered, Target, recover

from ..data.loader_iteration import find_place
from ..sharding.shards import is_alike, is_part, place_of
from ..state.caveats import lost_attributes, verdict
from ..state.plain_tensors import exchange
from ..tensors.arrays import Place
from . import export
from .recorded_state import OptimizerClasses, RecordedState

_ATTEMPTS_MAX = 1000

PlacedPart = tuple[Place, torch.Tensor]


class OfflineRun(OfflineReplay[RecordedState]):
    """One journal of a PyTorch run; the `torch` of the entry points `tranlogs.frameworks`.

    Args:
        folder: the journal's (`run/rank0`).
        optimizers: classes that torch.optim does not have, as "module:Class" or "NAME=module:Class".
    """

    check_target = staticmethod(export.check_target)

    def __init__(self, folder: Path, *, optimizers: Sequence[str] = ()) -> None:
        self._classes = OptimizerClasses(optimizers)
        super().__init__(folder, RecordedState(self._classes))

    def _recover(self, step: int | None, checkpoint: str | None, progress: Progress | None) -> Recovered | None:
        found = self._recover_state(step, checkpoint, progress)
        for parameter in self.state.parameters.values():
            parameter.grad = None
        return found

    def _recover_state(self, step: int | None, checkpoint: str | None, progress: Progress | None) -> Recovered | None:
        environment = read_environment(self.folder)
        is_alone = not is_of_group(environment) and not is_sharded(environment)
        if is_alone or (is_sharded(environment) and checkpoint is not None):
            return recover(self.folder, self.state, Target(step, checkpoint=checkpoint), progress=progress)
        reader = SingleReader(self.folder, step=step, checkpoint=checkpoint)  # each rank's journal has its share of the records
        if reader.generation.is_sharded and checkpoint is None:
            joined = recover_joined(reader, partial(RecordedState, self._classes), step, progress)
            if joined is not None:
                self.state = joined[0]
            return None if joined is None else joined[1]
        if checkpoint is None:
            landing = reader.make_recovery(self.state).recover(step, progress)
            if landing is None or landing.recovered is None:
                return None
            landing.recovered.notes += landing.notes
            return landing.recovered
        with reader.open_shards() as self.state.shards:
            newest = reader.find_newest_step_from(_step_of(self.folder, checkpoint)) if step is None else step
            found = recover(self.folder, self.state, Target(newest, checkpoint=checkpoint), progress=progress)
            if found is not None:
                found.notes += self.state.shards.notes
            return found

    def _judge(self, found: Recovered, differences: list[Note]) -> tuple[bool | None, list[Note]]:
        exact, reasons = verdict(self.state, found)
        lost = lost_attributes(self.state)
        return None if lost and exact else exact, [*reasons, *lost]

    def _find_place(self) -> tuple[int, int, int]:
        body = self.state.body
        return find_place(LoopRecord.read(body.get("loop")), body["data"], body["count"])

    def _write(self, path: Path, form: str | None, progress: Progress | None) -> list[str]:
        assert self.report is not None
        state = self.state
        tensors = {f"param/{name}": p.detach() for name, p in state.parameters.items()}
        tensors |= {f"buffer/{name}": b for name, b in state.body["buffers"].items()}
        models = {
            prefix: {k: tensors[name] for k, name in keys.items() if name in tensors} for prefix, keys in state.keys.items()
        }
        held = {name for keys in state.keys.values() for name in keys.values()}
        rest = {name: p.detach() for name, p in state.parameters.items() if f"param/{name}" not in held}
        tracked = state.body["tracked"]
        exported = export.Exported(self.report.step, models, rest, state.optimizers, state.name_of, tracked)
        return export.write(path, exported, form, progress)


def _step_of(folder: Path, checkpoint: str) -> int:
    with Checkpoint(folder / "checkpoints" / checkpoint) as found:
        return found.step


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
