"""What scripts of this folder share in the process that is killed."""

from __future__ import annotations

import os
from typing import Any

import keras


class Kill(keras.callbacks.Callback):
    """SIGKILL at ["batch", n] or ["epoch-end", n], counted over the process."""

    def __init__(self, place: list[Any] | None) -> None:
        super().__init__()
        self._place = place
        self._left = place[1] if place else 0

    def _count(self, name: str) -> None:
        if self._place and self._place[0] == name:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), 9)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._count("batch")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._count("epoch-end")


def outcome(model: Any, callback: Any, history: Any, **others: Any) -> dict[str, Any]:
    """What two runs of a script are compared by, and the report."""
    values = [*model.variables, *model.optimizer.variables]
    return {
        "state": {f"{i} {v.path}": keras.ops.convert_to_numpy(v).tobytes() for i, v in enumerate(values)},
        "history": {name: [float(x) for x in values] for name, values in history.history.items()},
        "others": others,
        "exact": callback.report.exact,
        "notes": list(callback.report.notes),
    }
