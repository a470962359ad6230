"""Redo: apply logged steps with the run's own optimizer, and compare the fingerprint after each.

Two orders give the same bits. Step by step works for every optimizer. Tensor by tensor (all steps of one parameter
while it is in the processor's cache) takes half the time and is used where an update of one tensor depends on no other:
the optimizers of torch.optim but LBFGS.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from tranlogs.codec.entry import EntryKind
from tranlogs.errors import CorruptRecord
from tranlogs.recovery import Divergence
from tranlogs.types import AnyArray, Bytes
from tranlogs.wal.reader import Entry

from .adapt import DTYPES, from_array

if TYPE_CHECKING:
    from .state import TorchState

_BUNDLE_ELEMENTS = 65_536  # small tensors are redone together, so that Python's cost a call is shared
_STEPS_MIN = 2  # fewer steps than this are not worth another order

_ELEMENTWISE = {
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD", "Adafactor",
    "Muon",
}  # fmt: skip


def redo(state: TorchState, entries: Sequence[Entry], tick: Callable[[int], None]) -> Divergence | None:
    """Apply entries in order. Weights records hold the whole state, so all before the last of them are passed over."""
    with _default_dtype(state.recorded_environment.get("default_dtype")):
        return _redo(state, entries, tick)


def _redo(state: TorchState, entries: Sequence[Entry], tick: Callable[[int], None]) -> Divergence | None:
    divergence: Divergence | None = None
    decoded = _without_covered(state, [(entry, state.decode(entry)) for entry in entries])
    done = len(entries) - len(decoded)
    tick(done)
    for run, by_tensor in _runs(state, decoded):
        if by_tensor:
            found = _ByTensor(state, run).redo(partial(_tick_from, tick, done))
            divergence = divergence or found
        else:
            for i, (entry, body) in enumerate(run):
                found = redo_one(state, entry, body)
                divergence = divergence or found
                tick(done + i + 1)
        done += len(run)
    return divergence


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


Decoded = tuple[Entry, dict[str, Any]]


def _without_covered(state: TorchState, decoded: list[Decoded]) -> list[Decoded]:
    """The entries without the steps that a later after-image of all that they change makes needless."""
    if len(state.optimizers) == 1:
        for i in range(len(decoded) - 1, 0, -1):
            if decoded[i][1].get("is_whole"):
                return [item for item in decoded[:i] if item[0].kind != EntryKind.STEP] + decoded[i:]
    return decoded


def _runs(state: TorchState, decoded: list[Decoded]) -> Iterator[tuple[list[Decoded], bool]]:
    """Cut the entries into runs that can be redone tensor by tensor, and the rest."""
    run: list[Decoded] = []
    eligible = False
    for item in decoded:
        fits = _is_elementwise(state, *item)
        if run and (fits != eligible or (fits and _signature(item) != _signature(run[-1]))):
            yield run, eligible and len(run) >= _STEPS_MIN
            run = []
        eligible = fits
        run.append(item)
    if run:
        yield run, eligible and len(run) >= _STEPS_MIN


def _is_elementwise(state: TorchState, entry: Entry, body: dict[str, Any]) -> bool:
    if entry.kind != EntryKind.STEP or body["record"] != "gradients":
        return False
    optimizer = state.optimizers[body["optimizer"]]
    kind = type(optimizer)
    known = kind.__name__ in _ELEMENTWISE and getattr(torch.optim, kind.__name__, None) is kind
    return known and all(p.device.type == "cpu" for g in optimizer.param_groups for p in g["params"])


def _signature(item: Decoded) -> Any:
    _, body = item
    return body["optimizer"], len(body["hyper"])


def redo_one(state: TorchState, entry: Entry, body: dict[str, Any]) -> Divergence | None:
    """Apply one entry; a Divergence if the fingerprint differs afterwards."""
    with torch.no_grad():
        if entry.kind == EntryKind.IMAGE or body["record"] == "weights":
            apply_image(state, entry, body)
            if body.get("is_stateless"):
                state.stale.add(body["optimizer"])
        elif body["record"] == "gradients":
            _step(state, entry, body)
        else:
            raise CorruptRecord(entry.reader.path, f"a record of unknown kind {body['record']!r}", step=entry.step)
    return _compare(state, entry, body) if "digests" in body else None


def apply_image(state: TorchState, entry: Entry, body: dict[str, Any]) -> None:
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
        value, parameter = from_array(array), state.parameters[name]
        if parameter.shape == value.shape:
            parameter.data.copy_(value)
        else:  # it grew, or shrank, while training
            parameter.data = value.to(parameter.device, copy=True)
    for which, about in groups.items():
        state.set_groups(which, about["params"], about["values"])
    for which, items in body.get("state", {}).items():
        state.set_state(which, items, partial(_state_of, entry, which))


def _state_of(entry: Entry, which: str, name: str, key: str) -> AnyArray | None:
    return entry.read(f"state/{which}/{name}/{key}")


def _step(state: TorchState, entry: Entry, body: dict[str, Any]) -> None:
    optimizer = state.optimizers[body["optimizer"]]
    state.set_hyper(body["optimizer"], body["hyper"])
    names = set(entry.tensor_names())
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        name = f"grad/{state.name_of[id(parameter)]}"
        array = entry.read(name) if name in names else None
        parameter.grad = None if array is None else from_array(array).to(parameter.device)
    try:
        clip_again([p for p in parameters if p.grad is not None], body)
        with amp_of(optimizer, body), without_hooks(optimizer):
            optimizer.step()
    finally:
        for parameter in parameters:
            parameter.grad = None


def clip_again(parameters: list[torch.Tensor], body: dict[str, Any]) -> None:
    """Clip by the logged norm, as `clip_grad_norm_` of torch does it."""
    clip = body.get("clip")
    if clip is not None and parameters:
        torch.nn.utils.clip_grads_with_norm_(parameters, clip["max_norm"], clip["norm"], clip["foreach"])


@contextmanager
def amp_of(optimizer: torch.optim.Optimizer, body: dict[str, Any]) -> Iterator[None]:
    """The attributes that a GradScaler sets on an optimizer that unscales by itself."""
    given = body.get("amp", {})
    for key, value in given.items():
        setattr(optimizer, key, value.clone())
    try:
        yield
    finally:
        for key in given:
            delattr(optimizer, key)


@contextmanager
def without_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Neither ours nor the user's hooks run, global ones included: what they did to the gradients is in the log."""
    places: list[Any] = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks,
              _global_optimizer_pre_hooks, _global_optimizer_post_hooks]  # fmt: skip
    kept = [dict(hooks) for hooks in places]
    for hooks in places:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(places, kept, strict=True):
            hooks.update(before)


def _compare(state: TorchState, entry: Entry, body: dict[str, Any]) -> Divergence | None:
    recorded = np.frombuffer(body["digests"], "<u8")
    kind, names, fingerprint = body["fingerprint"], list(state.parameters), state.fingerprint
    state.fingerprint_kinds.add(kind)
    now = fingerprint.digests(entry.step, kind)
    which = range(len(now)) if kind == "full" else fingerprint.window(entry.step)
    if len(recorded) != len(now):
        return Divergence(entry.step, "the number of parameters")
    for i, a, b in zip(which, recorded, now, strict=True):
        if a != b:
            return Divergence(entry.step, names[i])
    return None


class _ByTensor:
    """Redo a run of gradient records of one optimizer, a bundle of tensors at a time."""

    def __init__(self, state: TorchState, run: list[Decoded]) -> None:
        self.state, self.run = state, run
        self.which = run[0][1]["optimizer"]
        self.optimizer = state.optimizers[self.which]
        self.fingerprint = state.fingerprint
        self.index = {name: i for i, name in enumerate(list(state.parameters)[: len(self.fingerprint.tensors)])}
        self.present = [set(entry.tensor_names()) for entry, _ in run]
        self.first = len(run)  # position in the run of the first divergence
        self.tensor = ""
        self.buffers: dict[int, Bytes] = {}

    def redo(self, tick: Callable[[int], None]) -> Divergence | None:
        bundles = list(self._bundles())
        total = sum(size for _, _, size in bundles) or 1
        done = 0
        for group, parameters, size in bundles:
            self._redo_bundle(group, parameters)
            done += size
            tick(len(self.run) * done // total)
        self._compare_untouched({id(p) for _, parameters, _ in bundles for p in parameters})
        self.state.set_hyper(self.which, self.run[-1][1]["hyper"])
        self.state.fingerprint_kinds |= {body["fingerprint"] for _, body in self.run}
        if self.first == len(self.run):
            return None
        return Divergence(self.run[self.first][0].step, self.tensor)

    def _bundles(self) -> Iterator[tuple[int, list[torch.Tensor], int]]:
        """(group, parameters, elements): large tensors alone, small ones together."""
        recorded = len(self.run[0][1]["hyper"])  # a group behind these was added later
        for i, group in enumerate(self.optimizer.param_groups[:recorded]):
            bundle: list[torch.Tensor] = []
            size = 0
            for parameter in group["params"]:
                if bundle and size + parameter.numel() > _BUNDLE_ELEMENTS:
                    yield i, bundle, size
                    bundle, size = [], 0
                bundle.append(parameter)
                size += parameter.numel()
            if bundle:
                yield i, bundle, size

    @torch.no_grad()
    def _redo_bundle(self, group: int, parameters: list[torch.Tensor]) -> None:
        whole = self.optimizer.param_groups[group]
        options = {k: v for k, v in whole.items() if k not in ("params", "param_names")}
        alone = type(self.optimizer)([{"params": parameters, **options}], **_defaults(self.optimizer))
        alone.state = self.optimizer.state
        target = alone.param_groups[0]
        names = [self.state.name_of[id(p)] for p in parameters]
        for position, (entry, body) in enumerate(self.run):
            for key, value in body["hyper"][group].items():
                target[key] = value
            for parameter, name in zip(parameters, names, strict=True):
                parameter.grad = self._gradient(position, entry, f"grad/{name}")
            clip_again([p for p in parameters if p.grad is not None], body)
            with amp_of(alone, body), without_hooks(alone):
                alone.step()
            for name in names:
                self._check(position, name)
        for parameter in parameters:
            parameter.grad = None

    def _gradient(self, position: int, entry: Entry, name: str) -> torch.Tensor | None:
        if name not in self.present[position]:
            return None
        size = sum(frame.spec.nbytes for frame in entry.frames_of(name))
        buffer = self.buffers.get(size)
        if buffer is None or len(self.buffers) > 64:
            self.buffers = {size: np.empty(size, np.uint8)} if len(self.buffers) > 64 else self.buffers
            buffer = self.buffers[size] = np.empty(size, np.uint8)
        array = entry.read(name, buffer if size >= _BUNDLE_ELEMENTS * 4 else None)
        return None if array is None else from_array(array)

    def _check(self, position: int, name: str, whole: int | None = None) -> None:
        """Compare one tensor after one step; `whole` is its full digest where that is known."""
        entry, body = self.run[position]
        index = self.index.get(name)
        if index is None or position >= self.first or "digests" not in body:
            return
        is_full = body["fingerprint"] == "full"
        window = range(len(self.index)) if is_full else self.fingerprint.window(entry.step)
        if index not in window:
            return
        if is_full:
            now = self.fingerprint.one(index) if whole is None else whole
        else:
            now = self.fingerprint.sampled(index, entry.step)
        if now != np.frombuffer(body["digests"], "<u8")[window.index(index)]:
            self.first, self.tensor = position, name

    def _compare_untouched(self, done: set[int]) -> None:
        """Parameters of other optimizers, and frozen ones, must be as recorded all along."""
        for name, parameter in self.state.parameters.items():
            if id(parameter) not in done and name in self.index:
                whole = self.fingerprint.one(self.index[name])  # the same at every position
                for position in range(len(self.run)):
                    self._check(position, name, whole)


def _defaults(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What the constructor wants; options that it does not take (`initial_lr`, ...) stay in the group."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    return {key: value for key, value in optimizer.defaults.items() if key in accepted}
