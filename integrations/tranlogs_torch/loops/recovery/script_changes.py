"""What a script has changed between `recover()` and its loop, to be kept where the state is set to another boundary."""

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
from ...state.optimizer_changes import OptimizerChanges
from ...tensors.placement import local
from ..run_parts import RunParts

_TRAINERS = f"{__name__.partition('.')[0]}.trainers."  # modules of objects that a trainer's callback tracks
_SHOWN_MAX = 5  # changes that are named one by one


class LandedState:
    """A copy of what recovery has restored and the script can change: tracked objects, buffers, modes, and which weights train.

    Args:
        parts: of the run.
    """

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._modules = copied(_read_modules(parts))
        self._tracked = dict[str, Any]()
        self.note_tracked(parts.auxiliary.tracked)

    def note_tracked(self, names: Collection[str]) -> None:
        """Copy objects that were tracked after the recovery, and have just been given their recorded state."""
        for name in names:
            thing = self._parts.auxiliary.tracked[name]
            if type(thing).__module__.startswith(_TRAINERS):  # a trainer makes its progress anew, and sets it back by itself
                continue
            with suppress(UnencodableState):  # the next boundary says so
                self._tracked[name] = copied(thing.state_dict())

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
        texts: the changes other than those of weights and hyper-parameters, in words.
    """

    def __init__(self, parts: RunParts, landed: LandedState | None, ignored: Collection[str]) -> None:
        self._parts, self._state = parts, parts.state
        self._hyper: list[tuple[str, int, str, Any]] = parts.auxiliary.changed_hyper()
        written = [name for name in parts.writes.parameters(parts.journal.step) if name in self._state.parameters]
        self._weights = {name: self._state.parameters[name].detach().clone() for name in written}
        self._optimizers = {
            which: OptimizerChanges(self._state.optimizers[which], parts.hooks[which].watch)
            for which in parts.writes.optimizers()
        }
        self._landed = landed
        self._modules, self._tracked = ([], {}) if landed is None else landed.find_changes(ignored)
        self.texts = self._describe()

    def find_moved(self, end: dict[str, Any]) -> list[str]:
        """Return what the script has changed and the unit changes, too: the script may have derived its value from the former.

        Args:
            end: the body of the boundary that ends the unit.
        """
        landed, found = self._parts.auxiliary.landed_hyper, []
        for which, i, key, _ in self._hyper:
            was, then = landed[which][i][key], end["after"][which][i].get(key)
            if find_changes(copied(was), copied(then)):
                found.append(f"{key} of parameter group {i} of optimizer {which!r} (it was {_show(was)}, then {_show(then)})")
        others = [] if self._landed is None else self._landed.find_moved(self._tracked, end["tracked"])
        found += ["what is remembered" if name == REMEMBERED else f"the tracked {name!r}" for name in others]
        return found + [f"the state of optimizer {which!r}" for which in self._optimizers]

    def apply(self) -> None:
        """Set them again."""
        state, tracked = self._state, self._parts.auxiliary.tracked
        for name, changes in self._tracked.items():
            if name in tracked:
                tracked[name].load_state_dict(apply_changes(tracked[name].state_dict(), changes))
        for which, i, key, value in self._hyper:
            for optimizer in {id(one): one for one in (state.optimizers[which], state.outer(which))}.values():
                optimizer.param_groups[i][key] = value
        with torch.no_grad():
            for name, value in self._weights.items():
                state.parameters[name].copy_(value)
        for optimizer_changes in self._optimizers.values():
            optimizer_changes.apply()
        self._set_modules(apply_changes(_read_modules(self._parts), self._modules))

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
        kinds = {"buffers": "buffer", "training": "training mode of module", "requires_grad": "requires_grad of"}
        found = [f"{kinds[path[0]]} {path[1] or '(root)'}" for path, _ in self._modules]
        for name, changes in self._tracked.items():
            if name == REMEMBERED:  # {"values": {attribute: value}, "objects": states of objects in them, ...}
                found += [f"state.{path[1]}" if path[0] == "values" else "an object in remember(...)" for path, _ in changes]
            else:
                found += [".".join(map(str, path)) + f" of the tracked {name!r}" for path, _ in changes]
        found = list(dict.fromkeys(found))
        more = len(found) - _SHOWN_MAX
        return [*found[:_SHOWN_MAX], *([f"and {more} more values"] if more > 0 else [])]


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
