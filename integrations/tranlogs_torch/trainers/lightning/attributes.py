"""Plain attributes of a user's module or callback, as hooks and steps have set them.

When an epoch is resumed, Lightning does not call `on_train_epoch_start` again. Attributes that it sets have to be restored.
"""

from __future__ import annotations

from typing import Any

from ..changed_attributes import ChangedAttributes
from .lightning_internals import TranLogsCallback, names_set_by_lightning


class Attributes:
    """The attributes of the module and of callbacks that have changed since this was made.

    Args:
        trainer: whose module and callbacks are looked at, except Lightning's callbacks and ours, which have `state_dict`.
    """

    def __init__(self, trainer: Any) -> None:
        self._owners: dict[str, Any] = {"module": trainer.lightning_module}
        for number, one in enumerate(trainer.callbacks):
            if not isinstance(one, TranLogsCallback) and not type(one).__module__.startswith("lightning."):
                self._owners[f"callback{number}"] = one
        self._changed = {name: _changed(one) for name, one in self._owners.items()}

    def settle(self) -> None:
        """Training begins now."""
        for one in self._changed.values():
            one.settle()

    def read(self) -> dict[str, dict[str, Any]]:
        """Return what has changed, by the name of each owner; the rest is the script's, which may have been edited since."""
        return {name: one.read() for name, one in self._changed.items()}

    def write(self, recorded: dict[str, dict[str, Any]]) -> None:
        """Set recorded attributes."""
        for name, one in self._changed.items():
            one.write(recorded.get(name, {}))

    @property
    def lost(self) -> list[str]:
        """Attributes that have changed and cannot be stored, as `Class.name`."""
        return [
            f"{type(self._owners[owner]).__name__}.{name}" for owner, one in self._changed.items() for name in sorted(one.lost)
        ]


def _changed(owner: Any) -> ChangedAttributes:
    kind: Any = type(owner)
    return ChangedAttributes(owner, names_set_by_lightning(kind))
