"""What a subclass of Trainer keeps on itself while it trains, such as the sums behind the metrics that it logs.

trl's SFTTrainer counts the tokens that it has seen and collects entropies until the next log: neither is in TrainerState.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from transformers import Trainer

from tranlogs.base.errors import UnencodableState
from tranlogs.records import tree

from ...tensors import arrays
from .transformers_internals import trainer_names

_ITEMS_MAX = 10_000  # of one attribute, counted through its containers
_ELEMENTS_MAX = 1 << 20  # of one tensor or array


class _TooLarge(Exception):
    """A value is too large to be read at each boundary."""


class SubclassState:
    """The attributes of a trainer that its subclass has added, and that have changed since this was made.

    Attributes:
        lost: names of those that have become something that cannot be stored, or another object of that kind.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._known = trainer_names()
        self._given = {name: (value, _encoded(value)) for name, value in self._attributes()}
        self._carried: set[str] = set()
        self.lost: set[str] = set()

    def read(self) -> dict[str, Any]:
        """Return those that have changed, as plain values."""
        found = {}
        for name, value in self._attributes():
            given, before = self._given.get(name, (None, None))
            if value is given and before is None:  # it could not be stored, and may be large
                continue
            now = _encoded(value)
            if now is None:
                self.lost.add(name)
            elif name in self._carried or now != before:
                found[name] = _stored(value, [_ITEMS_MAX])
        return found

    def write(self, recorded: dict[str, Any]) -> None:
        """Set them. Containers keep their type: a defaultdict stays one."""
        for name, value in recorded.items():
            setattr(self._trainer, name, _restored(getattr(self._trainer, name, None), value))
        self._carried = set(recorded)

    def _attributes(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(self._trainer).items() if name not in self._known]


def _encoded(value: Any) -> bytes | None:
    """The bytes by which a value is compared; None if it cannot be stored."""
    try:
        return tree.encode(_stored(value, [_ITEMS_MAX]), adapt=arrays.adapt)
    except (UnencodableState, RecursionError, _TooLarge):
        return None


def _stored(value: Any, items_left: list[int]) -> Any:
    """A copy of a value, of plain containers; what cannot be stored is left as it is, so that encoding refuses it."""
    items_left[0] -= 1
    if items_left[0] < 0:
        raise _TooLarge
    if isinstance(value, torch.Tensor | np.ndarray):
        if (value.numel() if isinstance(value, torch.Tensor) else value.size) > _ELEMENTS_MAX:
            raise _TooLarge
        return value.detach().clone() if isinstance(value, torch.Tensor) else value.copy()
    if isinstance(value, dict):
        return {key: _stored(item, items_left) for key, item in value.items()}
    if isinstance(value, list | deque):
        return [_stored(item, items_left) for item in value]
    return tuple(_stored(item, items_left) for item in value) if type(value) is tuple else value


def _restored(old: Any, new: Any) -> Any:
    """A recorded value, in the container that is there if it is of that kind."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [key for key in old if key not in new]:
            del old[key]
        for key, item in new.items():
            old[key] = _restored(dict.get(old, key), item)
        return old
    if isinstance(old, list | deque) and isinstance(new, list):
        old.clear()
        old.extend(_copied(item) for item in new)
        return old
    new = _copied(new)
    return new.to(old.device) if isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor) else new


def _copied(value: Any) -> Any:
    """A recorded value, which may be set once more."""
    return _stored(value, [_ITEMS_MAX + 1])
