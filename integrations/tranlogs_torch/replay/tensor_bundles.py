"""Bundles: the tensors that are redone together, by an optimizer of their own.

A `TensorBundle` has whole parameters of a group. A `RangeBundle` has one flat tensor in their place: the elements of a range,
which are either a part of one parameter, in its memory, or copies of several parameters that are written back in the end.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from tranlogs.training import is_same

from .gradient_blocks import Gradients, Key
from .ranges import Part, Range

# What torch calls in each step to find out whether a GPU is recording it. Where Lightning or accelerate run, that loads a
# library in each step of a machine without a GPU, which takes as long as the step of a small model.
_GRAPH_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")


def _check_nothing() -> None:
    """Check nothing: no step that is redone is recorded by a GPU."""


class Bundle(ABC):
    """Tensors of one parameter group that are redone together.

    Args:
        whole: the optimizer that has the group.
        which: name of that optimizer.
        group: index of the parameter group.

    Attributes:
        parameters: the tensors, or parts of tensors.
        names: names of the parameters that they belong to.
        keys: what the gradients of `trained` are asked for by.
        trained: the tensors that `optimizer` has.
        optimizer: an optimizer of the same class as the one of all parameters, and with the same state.
    """

    parameters: Sequence[torch.Tensor]
    trained: Sequence[torch.Tensor]
    keys: tuple[Key, ...]

    def __init__(self, whole: torch.optim.Optimizer, which: str, group: int, names: Sequence[str]) -> None:
        self.whole, self.which, self.group, self.names = whole, which, group, list(names)
        self.hyper: dict[str, Any] | None = None
        self.optimizer: Any = None

    @property
    def cut(self) -> Part | None:
        """The part of a parameter that is in the bundle, if that is not all of it."""
        return None

    def _make_optimizer(self) -> None:
        options = {k: v for k, v in self.whole.param_groups[self.group].items() if k not in ("params", "param_names")}
        self.optimizer = type(self.whole)([{"params": list(self.trained), **options}], **constructor_defaults(self.whole))
        for name in _GRAPH_CHECKS:
            if hasattr(type(self.optimizer), name):
                setattr(self.optimizer, name, _check_nothing)

    def set_hyper(self, hyper: dict[str, Any]) -> None:
        """Set the hyper-parameters of a step, unless they are those of the step before."""
        if hyper is not self.hyper:
            self.optimizer.param_groups[0].update(hyper)
            self.hyper = hyper

    def set_gradients(self, gradients: Gradients) -> None:
        """Set the gradients of a step."""
        for parameter, key in zip(self.trained, self.keys, strict=True):
            parameter.grad = gradients.get(key)

    @abstractmethod
    def keep_gradients(self) -> None:
        """Give the parameters the gradients of this step, in memory of their own."""

    @abstractmethod
    def finish(self) -> None:
        """Write parameters and optimizer state back."""


class TensorBundle(Bundle):
    """Whole parameters."""

    def __init__(
        self, whole: torch.optim.Optimizer, which: str, group: int, names: Sequence[str], parameters: Sequence[torch.Tensor]
    ) -> None:
        super().__init__(whole, which, group, names)
        self.parameters = self.trained = list(parameters)
        self.keys = tuple(self.names)
        self._make_optimizer()
        self.optimizer.state = whole.state

    def keep_gradients(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def finish(self) -> None:
        """Do nothing: the results are in their places."""


class RangeBundle(Bundle):
    """A flat tensor with the elements of a range. The parameters must satisfy `are_alike`."""

    def __init__(
        self, whole: torch.optim.Optimizer, which: str, group: int, range_: Range, members: Sequence[torch.Tensor]
    ) -> None:
        super().__init__(whole, which, group, [part.name for part in range_.parts])
        self.parts, self._members = range_.parts, list(members)
        self._is_cut = len(members) == 1
        self._flat = torch.nn.Parameter(self._flattened(self._members))
        self.trained, self.keys = [self._flat], (range_,)
        self.parameters = self._views(self._flat.detach())
        self._make_optimizer()
        has_state = bool(self._state_of(0))
        self.optimizer.state = defaultdict(dict, {self._flat: self._flat_state()} if has_state else {})
        self._must_adopt = self._is_cut and not has_state

    @property
    def cut(self) -> Part | None:
        return None if self._flat.numel() == sum(member.numel() for member in self._members) else self.parts[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the gradients of a step."""
        return self._flat.nbytes

    @property
    def is_last(self) -> bool:
        """True if no part of its parameters comes after it."""
        return self.parts[-1].end == self._members[-1].numel()

    def _flattened(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the elements of the range: a view of one tensor, or a copy of several."""
        flat = [_elements(tensor, part) for tensor, part in zip(tensors, self.parts, strict=True)]
        return flat[0] if self._is_cut else torch.cat(flat)

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the elements of each parameter, in its shape if all are there."""
        found, at = [], 0
        for member, part in zip(self._members, self.parts, strict=True):
            count = part.end - part.begin
            view = flat[at : at + count]
            found.append(view.view(member.shape) if count == member.numel() else view)
            at += count
        return found

    def _state_of(self, index: int) -> dict[str, Any]:
        found: dict[str, Any] = self.whole.state.get(self._members[index], {})
        return found

    def _flat_state(self) -> dict[str, Any]:
        states = [self._state_of(i) for i in range(len(self._members))]
        found = {}
        for key, value in states[0].items():
            if not isinstance(value, torch.Tensor):
                found[key] = value
            elif value.shape == self._members[0].shape:
                found[key] = self._flattened([state[key] for state in states])
            else:
                found[key] = value.clone()  # a count of steps: each part of a tensor has its own
        return found

    def keep_gradients(self) -> None:
        if self._flat.grad is None:
            return
        for member, part, view in zip(self._members, self.parts, self._views(self._flat.grad), strict=True):
            if part.begin == 0:
                member.grad = torch.empty_like(member)
            assert member.grad is not None
            _elements(member.grad, part).copy_(view.reshape(-1))

    def set_gradients(self, gradients: Gradients) -> None:
        if self._must_adopt and self._flat in self.optimizer.state:
            self._adopt_state()
        super().set_gradients(gradients)

    def _adopt_state(self) -> None:
        """Move the state that the first step has made to where it stays: otherwise all of it would be moved in the end."""
        self._must_adopt = False
        self._write_state()
        state, whole = self.optimizer.state[self._flat], self.whole.state[self._members[0]]
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == self._flat.shape:
                state[key] = _elements(whole[key], self.parts[0])

    def finish(self) -> None:
        for member, part, view in zip(self._members, self.parts, self.parameters, strict=True):
            if not self._is_cut:
                _elements(member, part).copy_(view.reshape(-1))
        if self._flat in self.optimizer.state:
            self._write_state()

    def _write_state(self) -> None:
        for member in self._members:
            self.whole.state[member]  # creates the entry if it is missing, as a step does
        for key, value in self.optimizer.state[self._flat].items():
            if isinstance(value, torch.Tensor) and value.shape == self._flat.shape:
                self._write_back(key, value)
                continue
            for i, member in enumerate(self._members):
                old = self._state_of(i).get(key)
                if isinstance(value, torch.Tensor) and isinstance(old, torch.Tensor):
                    old.copy_(value)
                else:
                    self.whole.state[member][key] = value.clone() if isinstance(value, torch.Tensor) else value

    def _write_back(self, key: str, value: torch.Tensor) -> None:
        """Write a tensor of the state, with an element for each of the parameters', to the state of each."""
        for member, part, view in zip(self._members, self.parts, self._views(value), strict=True):
            state = self.whole.state[member]
            if not isinstance(state.get(key), torch.Tensor):
                state[key] = torch.empty_like(member, dtype=value.dtype)
            place = _elements(state[key], part)
            if place.data_ptr() != view.data_ptr():
                place.copy_(view.reshape(-1))


def _elements(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    return tensor.detach().view(-1)[part.begin : part.end]


def can_be_flat(parameter: torch.Tensor, state: Any) -> bool:
    """Return True if a parameter and its state lie in memory in the order of their elements."""
    if (
        parameter.dim() == 0
        or parameter.numel() == 0
        or parameter.is_complex()
        or not _is_flat(parameter)
        or not isinstance(state, dict)
    ):
        return False
    for value in state.values():
        if isinstance(value, torch.Tensor):
            if value.dim() and (value.shape != parameter.shape or not _is_flat(value)):
                return False
            if value.device.type != "cpu":
                return False
        elif not (value is None or type(value) in (bool, int, float)):
            return False
    return True


def _is_flat(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and tensor.is_contiguous()


def are_alike(state: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if the states of two parameters can be merged: equal but for what is by element."""
    return list(state) == list(other) and all(map(_is_alike, state.values(), other.values()))


def _is_alike(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or bool(a.dim()) != bool(b.dim()):
            return False
        return bool(a.dim()) or torch.equal(a.reshape(1).view(torch.uint8), b.reshape(1).view(torch.uint8))
    return is_same(a, b)


def constructor_defaults(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what the constructor wants; options that it does not take (`initial_lr`, ...) stay in the group."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    return {key: value for key, value in optimizer.defaults.items() if key in accepted}
