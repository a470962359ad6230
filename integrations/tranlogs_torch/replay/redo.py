"""Redo: apply logged steps with the run's own optimizer, and compare the fingerprint after each.

Two orders give the same bits. Step by step works for every optimizer. Tensor by tensor (all steps of one parameter
while it is in the processor's cache) takes half the time and is used where an update of one tensor depends on no other:
the optimizers of torch.optim but LBFGS.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tranlogs.base.errors import CorruptRecord
from tranlogs.base.types import AnyArray
from tranlogs.ranks import StepEntry
from tranlogs.records import Entry
from tranlogs.training import Decoded, Divergence, StateDigests, decode_entries, redo_in_order

from ..capture.single_step import amp_of, clip_again, without_hooks
from ..sharding.update_kinds import BY_TENSOR, is_one_of
from ..state.optimizer_states import write_groups, write_hyper
from ..state.state import TorchState
from ..tensors.arrays import DTYPES, write_into
from .gradient_blocks import GradientMemory, Gradients, Span
from .redo_by_tensor import ByTensor

_STEPS_MIN = 2  # fewer steps than this are not worth another order


@dataclass(slots=True)
class Orders:
    """The orders in which steps are redone.

    Attributes:
        is_free: True if tensors may be redone one after the other where that gives the same bits; False for step by step.
        was_used: whether steps were redone so.
    """

    is_free: bool
    was_used: bool = False


def redo(state: TorchState, entries: Sequence[Entry], tick: Callable[[int], None], orders: Orders) -> Divergence | None:
    """Apply entries in order. Weights records hold the whole state, so all before the last of them are passed over."""
    with _default_dtype(state.redone.environment.get("default_dtype")):
        return _redo(state, entries, tick, orders)


def _redo(state: TorchState, entries: Sequence[Entry], tick: Callable[[int], None], orders: Orders) -> Divergence | None:
    divergence: Divergence | None = None
    kept = _without_covered(state, decode_entries(state.decode, entries))
    decoded = [(_whole(state, entry, body) if "share" in body else entry, body) for entry, body in kept]
    done = len(entries) - len(decoded)
    tick(done)
    by_step = _ByStep(state)
    for run, by_tensor in _runs(state, decoded):
        tick_from = partial(_tick_from, tick, done)
        if by_tensor and orders.is_free:
            orders.was_used = True
            found = ByTensor(state, run).redo(tick_from)
        else:
            with torch.no_grad():
                found = redo_in_order(by_step, run, tick_from)
        divergence = divergence or found
        done += len(run)
    return divergence


def _whole(state: TorchState, entry: StepEntry, body: dict[str, Any]) -> StepEntry:
    """Return a record that ranks divided among themselves with the shares of all ranks."""
    if state.shards is None:
        raise CorruptRecord(
            entry.reader.path, "it holds a share of the gradients, and the other ranks' journals are missing", step=entry.step
        )
    return state.shards.join(entry, body, state.decode)


@contextmanager
def _default_dtype(name: str | None) -> Iterator[None]:
    """Optimizers make their `step` in the default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES.get(name or "", before))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _tick_from(tick: Callable[[int], None], base: int, done: int) -> None:
    tick(base + done)


def _without_covered(state: TorchState, decoded: Sequence[Decoded]) -> Sequence[Decoded]:
    """Return the entries without steps whose results a later after-image replaces completely."""
    if len(state.optimizers) == 1:
        for i in range(len(decoded) - 1, 0, -1):
            if decoded[i][1].get("is_whole"):
                return [item for item in decoded[:i] if not item[0].kind.is_step] + [*decoded[i:]]
    return decoded


def _runs(state: TorchState, decoded: list[Decoded]) -> Iterator[tuple[list[Decoded], bool]]:
    """Cut the entries into runs that can be redone tensor by tensor, and the rest."""
    run: list[Decoded] = []
    eligible = False
    known: dict[int, bool] = {}  # by body, until something is redone: an after-image may change the groups
    groups: dict[str, int] = {}  # how many each optimizer has in this run
    are_apart = _are_apart(state)
    for item in decoded:
        entry, body = item
        fits = known.get(id(body))
        if fits is None or not entry.kind.is_step:
            fits = known[id(body)] = are_apart and _is_by_tensor(state, entry, body)
        if run and (fits != eligible or (fits and not _has_as_many(groups, body))):
            yield run, eligible and len(run) >= _STEPS_MIN
            run = []
            known.clear()
            groups.clear()
            are_apart = _are_apart(state)
            fits = are_apart and _is_by_tensor(state, entry, body)
        eligible = fits
        if fits:
            groups[body["optimizer"]] = len(body["hyper"])
        run.append(item)
    if run:
        yield run, eligible and len(run) >= _STEPS_MIN


def _is_by_tensor(state: TorchState, entry: StepEntry, body: dict[str, Any]) -> bool:
    if not entry.kind.is_step or body["record"] != "gradients" or body["fingerprint"] == "device":
        return False
    optimizer = state.optimizers[body["optimizer"]]
    return is_one_of(BY_TENSOR, optimizer)


def _are_apart(state: TorchState) -> bool:
    """Return True if all parameters lie on the CPU, none belongs to two optimizers, and no two share memory."""
    owned = [p for optimizer in state.optimizers.values() for g in optimizer.param_groups for p in g["params"]]
    parameters = {id(p): p for p in (*owned, *state.parameters.values())}
    is_owned_once = len({id(p) for p in owned}) == len(owned)
    is_on_cpu = all(p.device.type == "cpu" for p in parameters.values())
    return is_owned_once and is_on_cpu and not _share_memory(list(parameters.values()))


def _has_as_many(groups: dict[str, int], body: dict[str, Any]) -> bool:
    """Return True if a step can be redone together with others, by the numbers of groups of the optimizers."""
    count = len(body["hyper"])
    return groups.get(body["optimizer"], count) == count


def _share_memory(parameters: list[torch.Tensor]) -> bool:
    """Return True if two parameters share memory (`b.data = a.data`), so that the order of their updates counts."""
    places = sorted((p.data_ptr(), p.data_ptr() + p.nbytes) for p in parameters if p.numel())
    return any(following < end for (_, end), (following, _) in itertools.pairwise(places))


class _ByStep:
    """Applies records one after the other (`tranlogs.training.RedoTarget`)."""

    compared = "parameters"

    def __init__(self, state: TorchState) -> None:
        self._state, self._memory = state, GradientMemory()
        self._spans = {which: Span(which, None, 0) for which in state.optimizers}  # all gradients of a record

    def write_image(self, entry: StepEntry, body: dict[str, Any]) -> None:
        apply_image(self._state, entry, body)
        if body.get("is_stateless"):
            self._state.redone.stale.add(body["optimizer"])

    def apply_gradients(self, entry: StepEntry, body: dict[str, Any]) -> None:
        _step(self._state, body, self._memory.read(entry, self._spans[body["optimizer"]]))

    def read_digests(self, entry: StepEntry, body: dict[str, Any]) -> StateDigests:
        state, kind = self._state, body["fingerprint"]
        state.redone.kinds.add(kind)
        found = state.fingerprint.digests(entry.step, kind)
        indices = state.fingerprint.window(entry.step) if kind == "sample" else range(len(found))
        return StateDigests(found, indices, list(state.parameters))


def apply_image(state: TorchState, entry: StepEntry, body: dict[str, Any]) -> None:
    """Write an after-image: parameters, optimizer state where it was logged, parameter groups where they have changed."""
    arrays = {}
    for name in entry.tensor_names():
        kind, _, rest = name.partition("/")
        if kind == "param" and (array := entry.read(name)) is not None:
            arrays[rest] = array
    groups = body.get("groups", {})
    if groups:
        state.cover(arrays)
    for name, array in arrays.items():
        write_into(state.parameters[name], array)
    for which, about in groups.items():
        write_groups(state.named, which, about["params"], about["values"])
    for which, items in body.get("state", {}).items():
        state.set_state(which, items, partial(_state_of, entry, which))


def _state_of(entry: StepEntry, which: str, name: str, key: str) -> AnyArray | None:
    return entry.read(f"state/{which}/{name}/{key}")


def _step(state: TorchState, body: dict[str, Any], gradients: Gradients) -> None:
    optimizer = state.optimizers[body["optimizer"]]
    write_hyper(state.named, body["optimizer"], body["hyper"])
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        gradient = gradients.get(state.name_of[id(parameter)])
        # A copy lies in memory as torch aligns it: products of matrices may round otherwise elsewhere.
        parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
    try:
        clip_again([p for p in parameters if p.grad is not None], body)
        with amp_of(optimizer, body), without_hooks(optimizer):
            optimizer.step()
    except BaseException:
        for parameter in parameters:
            parameter.grad = None
        raise
