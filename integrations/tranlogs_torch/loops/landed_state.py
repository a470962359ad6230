"""The state where recovery has landed, as digests, and what a script has changed of it before its loop."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from tranlogs.base.errors import UnencodableState
from tranlogs.records import tree
from tranlogs.training import digest_of, is_below

from ..state import naming
from ..state.extra_state import split
from ..state.fingerprint import memory_of
from ..state.tracked_objects import REMEMBERED
from ..tensors import arrays
from ..tensors.arrays import local
from .run_parts import RunParts

_TRAINERS = f"{__name__.partition('.')[0]}.trainers."  # modules of objects that a trainer's callback tracks
_SHOWN_MAX = 8  # changes that are named one by one

Path = tuple[Any, ...]
Digests = dict[Path, Any]


class LandedState:
    """Digests of what recovery has restored and a script can change: all but random states and the place in the data.

    A script may write the value that is there already, as an evaluation of averaged weights does: that is no change.

    Args:
        parts: of the run.
    """

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._tensors = _digest_tensors(parts)
        self._modules, self._others = _digest_modules(parts), _digest_others(parts)
        self._tracked = dict[str, Digests]()
        self.note_tracked(parts.auxiliary.tracked)

    def note_tracked(self, names: Collection[str]) -> None:
        """Take digests of objects that were tracked after the recovery, and have just been given their recorded state."""
        for name in names:
            thing = self._parts.auxiliary.tracked[name]
            if type(thing).__module__.startswith(_TRAINERS):  # a trainer makes its progress anew, and sets it back by itself
                continue
            with suppress(UnencodableState):  # the next boundary reports it
                self._tracked[name] = dict(_digest_leaves(thing.state_dict()))

    def find_tensor_changes(self) -> list[str]:
        """Return which weights and optimizer states are others now, in words, if something may have written to them."""
        parts = self._parts
        if not (parts.writes.parameters(parts.journal.step) or parts.writes.optimizers()):
            return []
        paths = _compare(self._tensors, _digest_tensors(parts))
        return _shorten(
            [f"weight {path[1]}" if path[0] == "param" else f"the state of optimizer {path[1]!r}" for path in paths]
        )

    def find_hyper_changes(self) -> list[str]:
        """Return which hyper-parameters are others now, in words."""
        auxiliary, named = self._parts.auxiliary, self._parts.state.named
        found = [f"{key} of parameter group {i} of optimizer {which!r}" for which, i, key, _ in auxiliary.changed_hyper()]
        counts = {which: (len(groups), len(named.hyper(which))) for which, groups in auxiliary.landed_hyper.items()}
        return found + [
            f"the number of parameter groups of optimizer {which!r}" for which, (was, now) in counts.items() if was != now
        ]

    def find_other_changes(self, ignored: Collection[str]) -> list[str]:
        """Return what else is another now, in words: buffers, modes, which weights train, and tracked objects.

        Args:
            ignored: paths in the body of a boundary that hold wall-clock times.
        """
        kinds = {"buffers": "buffer", "training": "training mode of module", "requires_grad": "requires_grad of"}
        modules, found = _compare(self._modules, _digest_modules(self._parts)), list[str]()
        for kind, what in kinds.items():
            found += _shorten([f"{what} {path[1] or '(root)'}" for path in modules if path[0] == kind])
        found += [path[0] for path in _compare(self._others, _digest_others(self._parts))]
        for name, thing in self._parts.auxiliary.tracked.items():
            with suppress(KeyError, UnencodableState):
                paths = _compare(self._tracked[name], dict(_digest_leaves(thing.state_dict())))
                paths = [path for path in paths if not is_below(".".join(map(str, ("tracked", name, *path))), ignored)]
                found += [_name_tracked(name, path) for path in paths]
        return list(dict.fromkeys(found))


def show(texts: Sequence[str]) -> list[str]:
    """Return the first of many changes, with the number of the others."""
    more = len(texts) - _SHOWN_MAX
    return [*texts[:_SHOWN_MAX], *([f"and {more} more values"] if more > 0 else [])]


def _name_tracked(name: str, path: Path) -> str:
    if name != REMEMBERED:
        return ".".join(map(str, path)) + f" of the tracked {name!r}"
    # {"values": {attribute: value}, "objects": states of objects in them, ...}
    return f"state.{path[1]}" if path[0] == "values" else "an object in remember(...)"


def _shorten(texts: list[str]) -> list[str]:
    """Return texts of one kind, each once: all of two, or the first with the number of the others."""
    found = list(dict.fromkeys(texts))
    return found if len(found) <= 2 else [f"{found[0]} (and {len(found) - 1} more)"]


def _compare(was: Digests, now: Digests) -> list[Path]:
    """Return the paths at which there is another value now, or none."""
    return [path for path, digest in now.items() if path not in was or was[path] != digest] + [
        path for path in was if path not in now
    ]


def _digest_tensors(parts: RunParts) -> Digests:
    found: Digests = {("param", name): _digest(parameter) for name, parameter in parts.state.parameters.items()}
    for which, optimizer in parts.state.optimizers.items():
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        for number, parameter in enumerate(parameters):
            kept = optimizer.state.get(parameter)
            for key, value in kept.items() if isinstance(kept, dict) else ():
                found["state", which, number, key] = _digest(value)
    return found


def _digest_modules(parts: RunParts) -> Digests:
    """Return digests of buffers, and training modes, and which parameters train."""
    named = [(prefix + path, module) for prefix, root in parts.modules.items() for path, module in root.named_modules()]
    return {
        **{("buffers", name): _digest(buffer) for name, buffer in naming.named_buffers(parts.modules).items()},
        **{("training", name): module.training for name, module in named},
        **{("requires_grad", name): parameter.requires_grad for name, parameter in parts.state.parameters.items()},
    }


def _digest_others(parts: RunParts) -> Digests:
    own = {which: attributes for which, one in parts.state.optimizers.items() if (attributes := split(one)[0])}
    return {
        ("the extra state of a module",): _digest(parts.state.extra.read()),
        **{(f"an attribute of optimizer {which!r}",): _digest(attributes) for which, attributes in own.items()},
    }


def _digest_leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the digests of a state by path. Dicts are taken by key, and lists of dicts by item; any other value is a whole."""
    if type(value) is dict and value:
        for key, item in value.items():
            yield from _digest_leaves(item, (*path, key))
    elif type(value) is list and value and all(type(item) is dict for item in value):
        for i, item in enumerate(value):
            yield from _digest_leaves(item, (*path, i))
    else:
        yield path, _digest_encoded(value)


def _digest(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        held = local(value).detach().cpu().contiguous()
        return str(held.dtype), tuple(held.shape), digest_of(memory_of(held))
    try:
        return _digest_encoded(value)
    except UnencodableState:  # nothing of it is in a boundary, either
        return None


def _digest_encoded(value: Any) -> int:
    return digest_of(np.frombuffer(tree.encode(value, adapt=arrays.adapt), np.uint8))
