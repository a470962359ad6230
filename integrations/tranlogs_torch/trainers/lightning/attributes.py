"""Numbers and words that a module or a callback of a user's keeps in plain attributes, as hooks and steps have set them.

Amid an epoch Lightning does not call again what began it (`on_train_epoch_start`): an attribute which that has set would be as
it was built.
"""

from __future__ import annotations

from typing import Any

from .base import TranLogsCallback

_PLAIN = (bool, int, float, str, type(None))
_NOT_OURS = frozenset({"training"})  # the mode, which Lightning sets

Attributes = dict[str, dict[str, Any]]


def read(trainer: Any) -> Attributes:
    """What the module and callbacks have, by the name of each."""
    return {name: _plain_of(one) for name, one in _owners(trainer).items()}


def changed(trainer: Any, built: Attributes) -> Attributes:
    """What they have otherwise than when they were built; the rest is the script's, which may have been edited since."""
    now = read(trainer)
    return {
        name: {key: value for key, value in own.items() if (key, value) not in built.get(name, {}).items()}
        for name, own in now.items()
    }


def write(trainer: Any, recorded: Attributes) -> None:
    """Set them."""
    for name, one in _owners(trainer).items():
        for attribute, value in recorded.get(name, {}).items():
            setattr(one, attribute, value)


def _owners(trainer: Any) -> dict[str, Any]:
    """The module, and callbacks that are not Lightning's or ours: these have `state_dict`."""
    found = {"module": trainer.lightning_module}
    for number, one in enumerate(trainer.callbacks):
        if not isinstance(one, TranLogsCallback) and not type(one).__module__.startswith("lightning."):
            found[f"callback{number}"] = one
    return found


def _plain_of(one: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(one).items()
        if type(value) in _PLAIN and not name.startswith("_") and name not in _NOT_OURS
    }
