"""Redo tensor by tensor: a block of steps of one parameter while it lies in the processor's cache.

The bits are those of redoing step by step. Optimizers whose steps alternate (a GAN) take part together: the steps of the
others leave a tensor as it is, so its digest need not be taken again to be compared after them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from tranlogs.records import Entry
from tranlogs.training import Decoded, Divergence

from ..capture.single_step import amp_of, clip_again, step_of, without_hooks
from ..state.state import TorchState
from .gradient_blocks import GradientBlocks, Gradients

_BUNDLE_ELEMENTS = 262_144  # small tensors are redone together, so that Python's cost a call is shared


class Bundle:
    """Tensors of one parameter group that are redone together, by an optimizer of their own.

    Args:
        which: name of the optimizer that has the group.
        group: index of the parameter group.

    Attributes:
        parameters: the tensors.
        names: of them.
        covered: (index in the fingerprint, name) of those that it covers.
        digests: full digests of the covered ones, by index, until the next step of their optimizer.
        hyper: the hyper-parameters that the optimizer has now.
    """

    def __init__(self, which: str, group: int) -> None:
        self.which, self.group = which, group
        self.parameters: list[torch.Tensor] = []
        self.names: list[str] = []
        self.covered: list[tuple[int, str]] = []
        self.digests: dict[int, int] = {}
        self.elements = 0
        self.hyper: dict[str, Any] | None = None
        self.optimizer: Any = None

    def add(self, parameter: torch.Tensor, name: str) -> None:
        """Add a tensor."""
        self.parameters.append(parameter)
        self.names.append(name)
        self.elements += parameter.numel()

    def prepare(self, whole: torch.optim.Optimizer, index: dict[str, int]) -> None:
        """Make the optimizer: of the same class and with the same state as the one of all parameters."""
        self.covered = [(index[name], name) for name in self.names if name in index]
        options = {k: v for k, v in whole.param_groups[self.group].items() if k not in ("params", "param_names")}
        self.optimizer = type(whole)([{"params": self.parameters, **options}], **_defaults(whole))
        self.optimizer.state = whole.state

    def set_hyper(self, hyper: dict[str, Any]) -> None:
        """Set the hyper-parameters of a step, unless they are those of the step before."""
        if hyper is not self.hyper:
            self.optimizer.param_groups[0].update(hyper)
            self.hyper = hyper


class ByTensor:
    """Redo a run of gradient records, a block of steps and a bundle of tensors at a time.

    Args:
        state: that is redone.
        run: records of optimizers that have no tensor in common; those of each have as many parameter groups.
    """

    def __init__(self, state: TorchState, run: list[Decoded]) -> None:
        self.state, self.run = state, run
        self.last = {body["optimizer"]: position for position, (_, body) in enumerate(run)}  # record of each optimizer
        self.optimizers = {which: state.optimizers[which] for which in self.last}
        self.fingerprint = state.fingerprint
        self.index = {name: i for i, name in enumerate(list(state.parameters)[: len(self.fingerprint.tensors)])}
        self.first = len(run)  # position in the run of the first divergence
        self.tensor = ""

    @torch.no_grad()
    def redo(self, tick: Callable[[int], None]) -> Divergence | None:
        """Apply the run; a Divergence if a fingerprint differs."""
        bundles = list(self._bundles())
        for bundle in bundles:
            bundle.prepare(self.optimizers[bundle.which], self.index)
        done = 0
        with ExitStack() as stack:
            for optimizer in self.optimizers.values():
                stack.enter_context(without_hooks(optimizer))
            for block in stack.enter_context(GradientBlocks([entry for entry, _ in self.run])):
                recorded = [_Recorded(self, *self.run[done + i]) for i in range(len(block))]
                for bundle in bundles:
                    self._redo_bundle(bundle, done, block, recorded)
                    if done <= self.last[bundle.which] < done + len(block):
                        _keep_gradients(bundle.parameters)
                done += len(block)
                tick(done)
        self._compare_untouched({name for bundle in bundles for name in bundle.names})
        for which, position in self.last.items():
            self.state.set_hyper(which, self.run[position][1]["hyper"])
        self.state.redone.kinds |= {body["fingerprint"] for _, body in self.run}
        if self.first == len(self.run):
            return None
        return Divergence(self.run[self.first][0].step, self.tensor)

    def _bundles(self) -> Iterator[Bundle]:
        """Large tensors alone, small ones together."""
        for which, optimizer in self.optimizers.items():
            recorded = len(self.run[self.last[which]][1]["hyper"])  # a group behind these was added later
            for i, group in enumerate(optimizer.param_groups[:recorded]):
                bundle = Bundle(which, i)
                for parameter in group["params"]:
                    if bundle.parameters and bundle.elements + parameter.numel() > _BUNDLE_ELEMENTS:
                        yield bundle
                        bundle = Bundle(which, i)
                    bundle.add(parameter, self.state.name_of[id(parameter)])
                if bundle.parameters:
                    yield bundle

    def _redo_bundle(self, bundle: Bundle, base: int, block: Sequence[Gradients], recorded: Sequence[_Recorded]) -> None:
        step = step_of(type(bundle.optimizer))
        for i, gradients in enumerate(block):
            digests = recorded[i]
            if digests.body["optimizer"] == bundle.which:
                _step(bundle, step, gradients, digests)
                bundle.digests.clear()
            if base + i < self.first and (tensor := digests.different(bundle.covered, bundle.digests)) is not None:
                self.first, self.tensor = base + i, tensor

    def _compare_untouched(self, done: set[str]) -> None:
        """Parameters of other optimizers, and frozen ones, must be as recorded all along."""
        left = [(i, name) for name, i in self.index.items() if name not in done]
        if not left:
            return
        whole: dict[int, int] = {}  # the same at every position
        for position in range(self.first):
            tensor = _Recorded(self, *self.run[position]).different(left, whole)
            if tensor is not None:
                self.first, self.tensor = position, tensor
                return


def _step(bundle: Bundle, step: Callable[[Any], Any], gradients: Gradients, recorded: _Recorded) -> None:
    """Redo one step of a bundle's tensors."""
    optimizer, parameters, body = bundle.optimizer, bundle.parameters, recorded.body
    bundle.set_hyper(body["hyper"][bundle.group])
    for parameter, name in zip(parameters, bundle.names, strict=True):
        parameter.grad = gradients.get(name)
    if recorded.is_plain:
        step(optimizer)
        return
    clip_again([p for p in parameters if p.grad is not None], body)
    with amp_of(optimizer, body):
        step(optimizer)


def _keep_gradients(parameters: Sequence[torch.Tensor]) -> None:
    """Copy gradients whose memory is going to be read into again."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()


class _Recorded:
    """What the log says of one step: its body, and the fingerprint after it."""

    def __init__(self, redo: ByTensor, entry: Entry, body: dict[str, Any]) -> None:
        self.body, self._step, self._fingerprint = body, entry.step, redo.fingerprint
        self.is_plain = body.get("clip") is None and not body.get("amp")
        self._is_full = body["fingerprint"] == "full"
        self._digests: list[int] = np.frombuffer(entry.digests, "<u8").tolist()
        count = len(redo.index)
        window = () if self._is_full or not self._digests else redo.fingerprint.window(entry.step)
        self._places = {index: place for place, index in enumerate(window)}
        is_complete = len(self._digests) == (count if self._is_full else len(window))
        self._differs_anyway = bool(self._digests) and not is_complete

    def different(self, covered: Sequence[tuple[int, str]], known: dict[int, int]) -> str | None:
        """Return the name of the first tensor that is not as recorded; None if all are.

        Args:
            covered: (index in the fingerprint, name) of the tensors that are compared.
            known: full digests that are known already, by index; those that are taken are added.
        """
        if not self._digests:
            return None
        if self._differs_anyway:
            return "the number of parameters"
        if self._is_full:
            one, digests = self._fingerprint.one, self._digests
            for index, name in covered:
                found = known.get(index)
                if found is None:
                    found = known[index] = one(index)
                if found != digests[index]:
                    return name
            return None
        for index, name in covered:
            place = self._places.get(index)
            if place is not None and self._fingerprint.sampled([index], self._step)[0] != self._digests[place]:
                return name
        return None


def _defaults(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What the constructor wants; options that it does not take (`initial_lr`, ...) stay in the group."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    return {key: value for key, value in optimizer.defaults.items() if key in accepted}
