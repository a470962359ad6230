"""Small parameters that are redone as one tensor, because in their steps the number of tensors is what costs.

An optimizer that updates each element by itself gives the same bits wherever the element lies: torch is compiled without the
contraction of multiplications and additions, by which elements at the end of a tensor could round otherwise. The fingerprint
is compared after each step in any case, and a redo that differs is repeated without this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..capture.single_step import step_of
from ..sharding.shards import is_by_element
from .gradient_reader import Gradients

_PARAMETER_BYTES_MAX = 64 << 10  # of one parameter
_BYTES_MAX = 4 << 20  # of all
_OTHER_KERNELS = ("foreach", "fused", "capturable", "differentiable")  # settings of a group

Names = dict[int, str]  # names of parameters by id


class JoinedStep:
    """The step of an optimizer with one parameter in place of those of each group. `split` ends it.

    While it lasts, the optimizer's parameters are views of these, so that whoever reads them sees the newest step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: Names) -> None:
        self._optimizer = optimizer
        self._groups = [_Group(optimizer, group["params"], names) for group in optimizer.param_groups]
        self._twin: Any = object.__new__(type(optimizer))  # its constructor would register hooks
        self._twin.__dict__.update(optimizer.__dict__)
        self._twin.param_groups = [
            {**real, "params": [group.joined]} for real, group in zip(optimizer.param_groups, self._groups, strict=True)
        ]
        self._twin.state = defaultdict(dict, {group.joined: group.state for group in self._groups if group.state})
        self._step: Callable[[Any], Any] = step_of(type(optimizer))
        self._seen: Gradients | None = None

    def take_hyper(self) -> None:
        """Take the values of the optimizer's groups, which were set."""
        for twin, real in zip(self._twin.param_groups, self._optimizer.param_groups, strict=True):
            twin.update({key: value for key, value in real.items() if key != "params"})

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters that stand for those of each group."""
        return [group.joined for group in self._groups]

    def take(self, gradients: Gradients) -> bool:
        """Take the gradients of a step; return False if they do not lie as the parameters do."""
        if gradients is not self._seen:
            joined = [group.join_gradients(gradients) for group in self._groups]
            if any(gradient is None for gradient in joined):
                return False
            for group, gradient in zip(self._groups, joined, strict=True):
                group.joined.grad = gradient
            self._seen = gradients
        return True

    def step(self) -> None:
        """Take a step of the optimizer."""
        self._step(self._twin)

    def split(self) -> None:
        """Give the parameters and the optimizer's state their own memory back, with what the steps have left."""
        for group in self._groups:
            group.split(self._optimizer, self._twin.state.get(group.joined, {}))


class _Group:
    """The parameters of one group.

    Attributes:
        joined: stands for them.
        state: of the optimizer for it; empty before the first step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor], names: Names) -> None:
        self._parameters = list(parameters)
        self._names = [names[id(parameter)] for parameter in parameters]
        self._own = [parameter.data for parameter in parameters]
        self._ends = [0]
        for parameter in parameters:
            self._ends.append(self._ends[-1] + parameter.numel())
        self.joined = torch.nn.Parameter(torch.cat([own.reshape(-1) for own in self._own]), requires_grad=False)
        states = [optimizer.state.get(parameter, {}) for parameter in parameters]
        self.state = {key: self._join_values([state[key] for state in states]) for key in states[0]}
        for parameter, own, part in zip(self._parameters, self._own, self._parts(self.joined.data), strict=True):
            parameter.data = part.view(own.shape)

    def _parts(self, values: torch.Tensor) -> list[torch.Tensor]:
        return [values[start:end] for start, end in zip(self._ends, self._ends[1:], strict=False)]

    def _join_values(self, values: list[Any]) -> Any:
        if not isinstance(values[0], torch.Tensor):
            return values[0]
        if values[0].shape != self._own[0].shape or values[0].dim() == 0:
            return values[0].clone()
        return torch.cat([value.reshape(-1) for value in values])

    def join_gradients(self, gradients: Gradients) -> torch.Tensor | None:
        """Return the gradients as one tensor over their memory; None if they do not lie there one after another."""
        found = [gradients.get(name) for name in self._names]
        at = None
        for gradient, own in zip(found, self._own, strict=True):
            if gradient is None or gradient.dtype != own.dtype or gradient.shape != own.shape or not gradient.is_contiguous():
                return None
            if at is not None and gradient.data_ptr() != at:
                return None
            at = gradient.data_ptr() + gradient.nbytes
        memory = gradients.memory
        assert found[0] is not None
        start = found[0].data_ptr() - memory.ctypes.data
        nbytes = self.joined.nbytes
        if not 0 <= start <= memory.nbytes - nbytes:
            return None
        return torch.from_numpy(memory[start : start + nbytes]).view(self.joined.dtype)

    def split(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        parts = {key: self._parts(value) for key, value in state.items() if _is_like(value, self.joined)}
        pieces = self._parts(self.joined.data)
        for i, (parameter, own) in enumerate(zip(self._parameters, self._own, strict=True)):
            own.copy_(pieces[i].view(own.shape))
            parameter.data = own
            before = optimizer.state.get(parameter, {})
            values = {key: parts[key][i].view(own.shape) if key in parts else value for key, value in state.items()}
            if values:
                optimizer.state[parameter] = {key: _written(before.get(key), value) for key, value in values.items()}


def _is_like(value: Any, joined: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.shape == joined.shape


def _written(before: Any, value: Any) -> Any:
    """Return a value of the state in memory of its own: that which it had, if there was any."""
    if not isinstance(value, torch.Tensor):
        return value
    return before.copy_(value) if isinstance(before, torch.Tensor) else value.clone()


def can_join(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if the parameters of each group are small, and can be redone as one."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return (
        is_by_element(optimizer)
        and len(parameters) > len(optimizer.param_groups)
        and sum(parameter.nbytes for parameter in parameters) <= _BYTES_MAX
        and all(_can_join(optimizer, group) for group in optimizer.param_groups)
    )


def _can_join(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    parameters = group["params"]
    states = [optimizer.state.get(parameter, {}) for parameter in parameters]
    return (
        bool(parameters)
        and not any(group.get(setting) for setting in _OTHER_KERNELS)
        and len({parameter.dtype for parameter in parameters}) == 1
        and all(map(_is_plain, parameters))
        and all(state.keys() == states[0].keys() for state in states)
        and all(_are_joinable([state[key] for state in states], parameters) for key in states[0])
    )


def _is_plain(parameter: torch.Tensor) -> bool:
    return (
        type(parameter) in (torch.Tensor, torch.nn.Parameter)
        and parameter.device.type == "cpu"
        and parameter.layout is torch.strided
        and parameter.dtype.is_floating_point
        and parameter.is_contiguous()
        and 0 < parameter.nbytes <= _PARAMETER_BYTES_MAX
        and getattr(parameter, "grad_dtype", None) in (None, parameter.dtype)
    )


def _are_joinable(values: list[Any], parameters: Sequence[torch.Tensor]) -> bool:
    """Return True if values of the state can be joined as the parameters are, or are the same for all of them."""
    first = values[0]
    if not isinstance(first, torch.Tensor):
        return all(type(value) is type(first) and value == first for value in values)
    if not all(isinstance(value, torch.Tensor) and value.dtype == first.dtype for value in values):
        return False
    if first.dim() == 0:
        return all(value.dim() == 0 and bool(value == first) for value in values)
    return all(
        value.shape == parameter.shape and value.layout is torch.strided and value.is_contiguous()
        for value, parameter in zip(values, parameters, strict=True)
    )
