"""Redo: apply logged steps with the run's own optimizer, in the order of training, and compare the fingerprint after each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from tranlogs.base.errors import CorruptRecord
from tranlogs.base.types import AnyArray
from tranlogs.ranks import StepRecord
from tranlogs.records import Record
from tranlogs.training import Decoded, Divergence, StateDigests, decode_entries, redo_in_order

from ..capture.single_step import amp_of, clip_again, step_of, without_hooks
from ..sharding.shards import is_by_element
from ..state.optimizer_states import write_groups, write_hyper
from ..state.plain_tensors import unwrapped
from ..state.state import TorchState
from ..tensors.arrays import DTYPES, write_into
from .gradient_reader import GradientReader, Gradients
from .joined_step import JoinedStep, can_join

_JOINED_STEPS_MIN = 8  # to join the parameters takes as long as some steps
# What torch calls in each step to find out whether a GPU is recording it. Where Lightning or accelerate run, that loads a
# library in each step of a machine without a GPU, which takes as long as the step of a small model.
_GRAPH_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")


class ReplayableState(TorchState):
    """The state of a PyTorch run, with redo."""

    def redo(self, entries: Sequence[Record], tick: Callable[[int], None]) -> Divergence | None:
        """Apply records in order; return the first step after which the fingerprint differs."""
        with unwrapped(self.named):
            return redo(self, entries, tick)


def redo(state: TorchState, entries: Sequence[Record], tick: Callable[[int], None]) -> Divergence | None:
    """Apply entries in order. Weights records hold the whole state, so all before the last of them are passed over.

    Returns:
        The first step after which the fingerprint differs; None if none does.

    Raises:
        CorruptRecord: a record is damaged.
    """
    kept = _without_covered(state, decode_entries(state.decode, entries))
    decoded = [(_whole(state, entry, body) if "share" in body else entry, body) for entry, body in kept]
    done = len(entries) - len(decoded)
    tick(done)
    steps = [(entry, body) for entry, body in decoded if entry.kind.is_step and body["record"] == "gradients"]
    devices = {parameter.device for parameter in state.parameters.values()}
    with ExitStack() as stack:
        stack.enter_context(_default_dtype(state.redone.environment.get("default_dtype")))
        stack.enter_context(torch.no_grad())
        for optimizer in state.optimizers.values():
            stack.enter_context(without_hooks(optimizer))
            stack.enter_context(_without_graph_checks(optimizer))
        before = _Before.of(state, decoded)
        found = _redo(state, steps, decoded, devices, lambda count: tick(done + count), joins=before is not None)
        if before is None or found is None:
            return found
        before.restore()
        return _redo(state, steps, decoded, devices, lambda count: tick(done + count), joins=False)


def _redo(
    state: TorchState,
    steps: Sequence[tuple[StepRecord, dict[str, Any]]],
    decoded: Sequence[tuple[StepRecord, dict[str, Any]]],
    devices: Set[torch.device],
    tick: Callable[[int], None],
    *,
    joins: bool,
) -> Divergence | None:
    with GradientReader([entry for entry, _ in steps], devices) as reader:
        target = _Target(state, reader, {body["optimizer"]: entry for entry, body in steps}, joins=joins)
        try:
            return redo_in_order(target, decoded, tick)
        except BaseException:
            target.drop_gradients()
            raise
        finally:
            target.split()


def _whole(state: TorchState, entry: StepRecord, body: dict[str, Any]) -> StepRecord:
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


@contextmanager
def _without_graph_checks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """No step that is redone is recorded by a GPU."""
    names = [name for name in _GRAPH_CHECKS if hasattr(type(optimizer), name) and name not in vars(optimizer)]
    for name in names:
        setattr(optimizer, name, lambda: None)
    try:
        yield
    finally:
        for name in names:
            delattr(optimizer, name)


def _without_covered(state: TorchState, decoded: Sequence[Decoded]) -> Sequence[Decoded]:
    """Return the entries without steps whose results a later after-image replaces completely."""
    if len(state.optimizers) == 1:
        for i in range(len(decoded) - 1, 0, -1):
            if decoded[i][1].get("is_whole"):
                return [item for item in decoded[:i] if not item[0].kind.is_step] + [*decoded[i:]]
    return decoded


class _Optimizer:
    """What is known of one optimizer until an after-image changes its groups.

    Attributes:
        step: its step without the wrapper that torch puts around it.
        parameters: with their names.
        is_by_element: True if gradients may lie anywhere in memory. A product of matrices may round otherwise elsewhere.
        hyper: the recorded hyper-parameters that it has.
    """

    def __init__(self, state: TorchState, which: str) -> None:
        optimizer = state.optimizers[which]
        self.is_by_element = is_by_element(optimizer)
        self.step = partial(step_of(type(optimizer)), optimizer) if self.is_by_element else optimizer.step
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.parameters = [(parameter, state.name_of[id(parameter)]) for parameter in parameters]
        self.hyper: Any = None


class _Before:
    """The state of a run with one optimizer, before records are redone with joined parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._values = [(parameter, parameter.detach().clone()) for parameter in parameters]
        self._state = [(parameter, copy.deepcopy(optimizer.state.get(parameter))) for parameter in parameters]

    @classmethod
    def of(cls, state: TorchState, decoded: Sequence[Decoded]) -> _Before | None:
        """Return the state; None if its parameters cannot be joined, or it would not pay."""
        if len(state.optimizers) != 1 or len(decoded) < _JOINED_STEPS_MIN or any("groups" in body for _, body in decoded):
            return None
        (optimizer,) = state.optimizers.values()
        return cls(optimizer) if can_join(optimizer) else None

    def restore(self) -> None:
        """Set the state back."""
        for parameter, value in self._values:
            parameter.data.copy_(value)
        for parameter, value in self._state:
            if value is None:
                self._optimizer.state.pop(parameter, None)
            else:
                self._optimizer.state[parameter] = value


class _Target:
    """The state to which records are applied (`tranlogs.training.RedoTarget`).

    Args:
        state: the state.
        reader: of the gradients.
        last: of each optimizer, the last record with gradients. The parameters keep these, in memory of their own.
        joins: True if small parameters are redone as one.
    """

    compared = "parameters"

    def __init__(self, state: TorchState, reader: GradientReader, last: dict[str, StepRecord], *, joins: bool) -> None:
        self._state, self._reader, self._last, self._joins = state, reader, last, joins
        self._optimizers: dict[str, _Optimizer] = {}
        self._joined: JoinedStep | None = None

    def split(self) -> None:
        """Give parameters that were joined memory of their own again."""
        if self._joined is not None:
            self._joined.split()
            self._joined = None

    def write_image(self, entry: StepRecord, body: dict[str, Any]) -> None:
        self.split()
        self._optimizers.clear()
        apply_image(self._state, entry, body)
        if body.get("is_stateless"):
            self._state.redone.stale.add(body["optimizer"])

    def apply_gradients(self, entry: StepRecord, body: dict[str, Any]) -> None:
        which, hyper = body["optimizer"], body["hyper"]
        optimizer = self._state.optimizers[which]
        known = self._optimizers.get(which) or self._optimizers.setdefault(which, _Optimizer(self._state, which))
        gradients = self._reader.read(entry)
        if hyper is not known.hyper or not known.is_by_element:  # Another optimizer may change its groups in a step.
            write_hyper(self._state.named, which, hyper)
            known.hyper = hyper
            if self._joined is not None:
                self._joined.take_hyper()
        if (
            self._joins
            and entry is not self._last[which]
            and "amp" not in body
            and self._step_joined(optimizer, gradients, body)
        ):
            return
        self.split()
        stays = known.is_by_element and entry is not self._last[which]
        for parameter, name in known.parameters:
            gradient = gradients.get(name)
            if gradient is not None and not (stays and parameter.device.type == "cpu"):
                # The reader waits for the copies before it gives the memory to another step.
                gradient = gradient.to(parameter.device, copy=True, non_blocking=parameter.device.type == "cuda")
            parameter.grad = gradient
        if "clip" in body:
            clip_again([parameter for parameter, _ in known.parameters if parameter.grad is not None], body)
        with amp_of(optimizer, body):
            known.step()

    def _step_joined(self, optimizer: torch.optim.Optimizer, gradients: Gradients, body: dict[str, Any]) -> bool:
        """Take the step with joined parameters; return False if that cannot be."""
        if self._joined is None and can_join(optimizer):
            self._joined = JoinedStep(optimizer, self._state.name_of)
        self._joins = self._joined is not None and self._joined.take(gradients)
        if self._joined is None or not self._joins:
            return False
        if "clip" in body:
            clip_again(self._joined.parameters, body)
        self._joined.step()
        return True

    def drop_gradients(self) -> None:
        """Forget the gradients: what lies in their memory may be of another step."""
        for known in self._optimizers.values():
            for parameter, _ in known.parameters:
                parameter.grad = None

    def read_digests(self, entry: StepRecord, body: dict[str, Any]) -> StateDigests:
        state, kind = self._state, body["fingerprint"]
        state.redone.kinds.add(kind)
        found = state.fingerprint.digests(entry.step, kind)
        indices = state.fingerprint.window(entry.step) if kind == "sample" else range(len(found))
        return StateDigests(found, indices, list(state.parameters))


def apply_image(state: TorchState, entry: StepRecord, body: dict[str, Any]) -> None:
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


def _state_of(entry: StepRecord, which: str, name: str, key: str) -> AnyArray | None:
    return entry.read(f"state/{which}/{name}/{key}")
