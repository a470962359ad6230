"""Changes of a script between `recover()` and its loop, which are kept when the state is set to another boundary."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

import torch

from tranlogs.base.errors import UnencodableState
from tranlogs.training import is_below

from ...state import naming
from ...state.auxiliary.state_changes import Change, apply_changes, copied, find_changes, meet
from ...state.auxiliary.tracked_objects import REMEMBERED
from ...tensors.placement import local
from ..run_parts import RunParts
from .landed_tensors import LandedTensors, TensorChange, apply_tensor_changes

_TRAINERS = f"{__name__.partition('.')[0]}.trainers."  # modules of objects that a trainer's callback tracks
_SHOWN_MAX = 8  # changes that are named one by one


class LandedState:
    """A copy of what recovery has restored and the script can change.

    Args:
        parts: of the run.

    Attributes:
        tensors: weights and the states of optimizers. Tracked objects, buffers, modes, and which weights train are kept, too.
    """

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._modules = copied(_read_modules(parts))
        self.tensors = LandedTensors(parts.state)
        self._tracked = dict[str, Any]()
        self.note_tracked(parts.auxiliary.tracked)

    def note_tracked(self, names: Collection[str]) -> None:
        """Copy objects that were tracked after the recovery, and have just been given their recorded state."""
        for name in names:
            thing = self._parts.auxiliary.tracked[name]
            if type(thing).__module__.startswith(_TRAINERS):  # a trainer makes its progress anew, and sets it back by itself
                continue
            with suppress(UnencodableState):  # the next boundary reports it
                self._tracked[name] = copied(thing.state_dict())

    def find_tensor_changes(self) -> list[TensorChange]:
        """Return what has changed of weights and optimizer states, if something may have written to them."""
        writes = self._parts.writes
        return self.tensors.find_changes() if writes.parameters(self._parts.journal.step) or writes.optimizers() else []

    def find_changes(self, ignored: Collection[str]) -> tuple[list[Change], dict[str, list[Change]]]:
        """Return what has changed of the modules, and of the tracked objects by name.

        Args:
            ignored: paths in the body of a boundary that hold wall-clock times.
        """
        modules = find_changes(self._modules, copied(_read_modules(self._parts)))
        tracked = {}
        for name, thing in self._parts.auxiliary.tracked.items():
            with suppress(KeyError, UnencodableState):
                found = find_changes(self._tracked[name], copied(thing.state_dict()))
                tracked[name] = [one for one in found if not is_below(".".join(map(str, ("tracked", name, *one[0]))), ignored)]
        return modules, {name: found for name, found in tracked.items() if found}

    def find_moved(self, changes: dict[str, list[Change]], end: dict[str, Any]) -> list[str]:
        """Return the names of tracked objects of which the unit changes what the script has changed.

        Args:
            changes: of the script, by name.
            end: the states of the tracked objects at the end of the unit.
        """
        return [
            name
            for name, found in changes.items()
            if name in end and meet(found, find_changes(self._tracked[name], copied(end[name])))
        ]


class ScriptChanges:
    """Everything that the script has set since the recovery. Values are copied.

    Args:
        parts: of the run.
        landed: the state right after the recovery.
        ignored: paths in the body of a boundary that hold wall-clock times.

    Attributes:
        texts: the changes, in words.
        is_certain: True if weights, the state of an optimizer or hyper-parameters are among them: nothing but a change on
            purpose sets these before a loop.
    """

    def __init__(self, parts: RunParts, landed: LandedState, ignored: Collection[str]) -> None:
        self._parts, self._state, self._landed = parts, parts.state, landed
        self._hyper: list[tuple[str, int, str, Any]] = parts.auxiliary.changed_hyper()
        self._tensors = landed.find_tensor_changes()
        self._modules, self._tracked = landed.find_changes(ignored)
        self.is_certain = bool(self._hyper or self._tensors)
        self.texts = self._describe()

    def find_moved(self, end: dict[str, Any]) -> list[str]:
        """Return what the script has changed and the unit changes, too: the script may have derived its value from the former.

        Weights and the states of optimizers are not among them: `apply` returns these.

        Args:
            end: the body of the boundary that ends the unit.
        """
        landed, found = self._parts.auxiliary.landed_hyper, []
        for which, i, key, _ in self._hyper:
            was, then = landed[which][i].get(key), end["after"][which][i].get(key)
            if find_changes(copied(was), copied(then)):
                found.append(f"{key} of parameter group {i} of optimizer {which!r} (it was {_show(was)}, then {_show(then)})")
        others = self._landed.find_moved(self._tracked, end["tracked"])
        return found + ["what is remembered" if name == REMEMBERED else f"the tracked {name!r}" for name in others]

    def apply(self) -> list[str]:
        """Set the changes again, in the state of the newest boundary.

        Returns:
            The weights, and the optimizers with a state, that the unit has changed at the same places, in words.
        """
        state, tracked = self._state, self._parts.auxiliary.tracked
        moved = self._landed.tensors.find_moved(self._tensors)
        for name, changes in self._tracked.items():
            if name in tracked:
                tracked[name].load_state_dict(apply_changes(tracked[name].state_dict(), changes))
        for which, i, key, value in self._hyper:
            state.optimizers[which].param_groups[i][key] = value
        apply_tensor_changes(self._tensors, state)
        self._set_modules(apply_changes(_read_modules(self._parts), self._modules))
        return moved

    def _set_modules(self, wanted: dict[str, Any]) -> None:
        changed = {path[:2] for path, _ in self._modules}
        changed = {(kind, name) for kind, name in changed if name in wanted[kind]}  # others are gone
        naming.set_buffers(self._state.modules, {name: wanted["buffers"][name] for kind, name in changed if kind == "buffers"})
        parts = dict(_named_modules(self._parts))
        for kind, name in changed:
            if kind == "training" and name in parts:
                parts[name].training = wanted["training"][name]
            elif kind == "requires_grad" and name in self._state.parameters:
                self._state.parameters[name].requires_grad_(wanted["requires_grad"][name])

    def _describe(self) -> list[str]:
        found = _shorten([change.text for change in self._tensors])
        found += [f"{key} of parameter group {i} of optimizer {which!r}" for which, i, key, _ in self._hyper]
        kinds = {"buffers": "buffer", "training": "training mode of module", "requires_grad": "requires_grad of"}
        for kind, what in kinds.items():
            found += _shorten([f"{what} {path[1] or '(root)'}" for path, _ in self._modules if path[0] == kind])
        for name, changes in self._tracked.items():
            if name == REMEMBERED:  # {"values": {attribute: value}, "objects": states of objects in them, ...}
                found += [f"state.{path[1]}" if path[0] == "values" else "an object in remember(...)" for path, _ in changes]
            else:
                found += [".".join(map(str, path)) + f" of the tracked {name!r}" for path, _ in changes]
        more = len(found) - _SHOWN_MAX
        return [*found[:_SHOWN_MAX], *([f"and {more} more values"] if more > 0 else [])]


def _shorten(texts: list[str]) -> list[str]:
    """Return texts of one kind, each once: all of two, or the first with the number of the others."""
    found = list(dict.fromkeys(texts))
    return found if len(found) <= 2 else [f"{found[0]} (and {len(found) - 1} more)"]


def _show(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else str(value)


def _read_modules(parts: RunParts) -> dict[str, Any]:
    """Return buffers, training modes, and which parameters train, by name."""
    return {
        "buffers": {name: local(buffer) for name, buffer in naming.named_buffers(parts.modules).items()},
        "training": {name: module.training for name, module in _named_modules(parts)},
        "requires_grad": {name: parameter.requires_grad for name, parameter in parts.state.parameters.items()},
    }


def _named_modules(parts: RunParts) -> list[tuple[str, torch.nn.Module]]:
    return [(prefix + path, module) for prefix, root in parts.modules.items() for path, module in root.named_modules()]
