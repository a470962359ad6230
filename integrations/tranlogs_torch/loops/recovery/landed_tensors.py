"""Weights and the state of optimizers right after a recovery, and what a script has changed of them before its loop."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tranlogs.base.errors import UnencodableState
from tranlogs.base.types import Bytes
from tranlogs.training import digest_of, find_changed_elements, is_set_as_a_whole

from ...state.auxiliary.state_changes import copied, find_changes
from ...state.fingerprint import memory_of
from ...state.state import TorchState
from ...tensors.placement import local

_COPIED_BYTES_MAX = 1 << 30  # of a larger state digests are kept, and a tensor that was written counts as a whole

# ("param", name of a parameter) or ("state", optimizer, number of the parameter, key)
Place = tuple[Any, ...]


class _Removed:
    """Marks a key that was removed."""


@dataclass(frozen=True, slots=True)
class TensorChange:
    """Change that a script has made to a weight, or to a value of an optimizer's state.

    Attributes:
        place: where.
        value: the script's.
        elements: a mask of the elements that the script has set; None for all of the value.
    """

    place: Place
    value: Any
    elements: torch.Tensor | None

    @property
    def text(self) -> str:
        """The name of the changed tensor, in words."""
        return f"weight {self.place[1]}" if self.place[0] == "param" else f"the state of optimizer {self.place[1]!r}"


class LandedTensors:
    """A copy of weights and optimizer states as recovery has restored them; digests of them if they are large.

    A script may write the value that is there already: it evaluates an average of the weights, and puts the weights back. And
    it may write some elements of a tensor, while the others have to be those of the newest step.

    Args:
        state: of the run.
    """

    def __init__(self, state: TorchState) -> None:
        self._state = state
        now = _read(state)
        tensors = [value for value in now.values() if isinstance(value, torch.Tensor)]
        strided = (local(tensor) for tensor in tensors if tensor.layout is torch.strided)
        self._is_copied = sum(tensor.nbytes for tensor in strided) <= _COPIED_BYTES_MAX
        self._was = {place: self._keep(value) for place, value in now.items()}

    def _keep(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        return _to_host(value) if self._keeps_copy_of(value) else _digest(value)

    def _keeps_copy_of(self, tensor: torch.Tensor) -> bool:
        """A sparse tensor, as SGD's momentum of an embedding is, has no single memory to digest."""
        return self._is_copied or tensor.layout is not torch.strided

    def find_changes(self) -> list[TensorChange]:
        """Return what differs from what recovery has restored, bit for bit."""
        now, found = _read(self._state), []
        for place, value in now.items():
            if place not in self._was:
                found.append(TensorChange(place, copy.deepcopy(value), None))
            elif (change := self._compare(place, self._was[place], value)) is not None:
                found.append(change)
        return found + [TensorChange(place, _Removed, None) for place in self._was.keys() - now.keys()]

    def _compare(self, place: Place, was: Any, now: Any) -> TensorChange | None:
        if not isinstance(now, torch.Tensor):
            return None if _is_same(was, now) else TensorChange(place, copy.deepcopy(now), None)
        if not self._keeps_copy_of(now):
            return None if was == _digest(now) else TensorChange(place, now.detach().clone(), None)
        held = _to_host(now)
        if not isinstance(was, torch.Tensor) or not _are_alike(was, held):
            return TensorChange(place, now.detach().clone(), None)
        elements = _find_differing(was, held)
        if not bool(elements.any()):
            return None
        is_whole = held.layout is not torch.strided or is_set_as_a_whole(
            _bytes_of(held), elements.reshape(-1).numpy(), held.element_size()
        )
        return TensorChange(place, held, None if is_whole else elements)

    def find_moved(self, changes: list[TensorChange]) -> list[str]:
        """Return what else has changed since the recovery at the places of some changes, in words.

        The script may have derived its value from the former one. Call it when the state is that of the newest boundary.
        """
        now = _read(self._state)
        return list(dict.fromkeys(change.text for change in changes if self._has_moved(change, now.get(change.place))))

    def _has_moved(self, change: TensorChange, now: Any) -> bool:
        was = self._was.get(change.place)
        if not isinstance(now, torch.Tensor):
            return not _is_same(was, now)
        if not isinstance(was, torch.Tensor):
            return self._keeps_copy_of(now) or was != _digest(now)
        held = _to_host(now)
        if not _are_alike(was, held):
            return True
        differing = _find_differing(was, held)
        return bool((differing if change.elements is None else differing & change.elements).any())


def apply_tensor_changes(changes: list[TensorChange], state: TorchState) -> None:
    """Set values that a script has changed, in the tensors that are there where these are alike."""
    with torch.no_grad():
        for change in changes:
            if change.place[0] == "param":
                _write(state.parameters[change.place[1]], change)
            else:
                _set_value(state.optimizers[change.place[1]], change)


def _set_value(optimizer: torch.optim.Optimizer, change: TensorChange) -> None:
    _, _, number, key = change.place
    parameter = _parameters_of(optimizer)[number]
    kept: dict[Any, Any] = optimizer.state[parameter]
    if change.value is _Removed:
        kept.pop(key, None)
    elif _can_take(kept.get(key), change.value):
        _write(kept[key], change)
    else:
        kept[key] = change.value


def _can_take(kept: Any, value: Any) -> bool:
    are_tensors = isinstance(kept, torch.Tensor) and isinstance(value, torch.Tensor)
    return are_tensors and _are_alike(local(kept), local(value))


def _write(tensor: torch.Tensor, change: TensorChange) -> None:
    held = local(tensor)
    value = local(change.value).to(held.device)
    held.copy_(value if change.elements is None else torch.where(change.elements.to(held.device), value, held))


def _read(state: TorchState) -> dict[Place, Any]:
    found: dict[Place, Any] = {("param", name): parameter for name, parameter in state.parameters.items()}
    for which, optimizer in state.optimizers.items():
        for number, parameter in enumerate(_parameters_of(optimizer)):
            for key, value in _values_of(optimizer, parameter):
                found["state", which, number, key] = value
    return found


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _values_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Iterator[tuple[Any, Any]]:
    kept = optimizer.state.get(parameter)
    yield from kept.items() if isinstance(kept, dict) else ()


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return local(tensor).detach().to("cpu", copy=True)


def _digest(tensor: torch.Tensor) -> int:
    return digest_of(memory_of(local(tensor).detach().cpu()))


def _are_alike(some: torch.Tensor, other: torch.Tensor) -> bool:
    return (some.shape, some.dtype, some.layout) == (other.shape, other.dtype, other.layout)


def _find_differing(some: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return a mask of the elements whose bits differ; of a sparse tensor, one for all of them."""
    if some.layout is not torch.strided:
        return torch.tensor(not _is_same(some, other))
    changed = find_changed_elements(_bytes_of(some), _bytes_of(other), some.element_size())
    return torch.from_numpy(changed).reshape(some.shape)


def _bytes_of(tensor: torch.Tensor) -> Bytes:
    found: Bytes = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return found


def _is_same(some: Any, other: Any) -> bool:
    try:
        return not find_changes(copied(some), copied(other))
    except UnencodableState:
        return False
