"""What scripts of this folder share in the process that is killed."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import keras

_seen: Counter[str] = Counter()  # of this process; an attribute of a callback would come back with the run


class Kill(keras.callbacks.Callback):
    """SIGKILL at ["batch", n] or ["epoch-end", n], counted over the process."""

    def __init__(self, place: list[Any] | None) -> None:
        super().__init__()
        self._place = place

    def _count(self, name: str) -> None:
        _seen[name] += 1
        if self._place == [name, _seen[name]]:
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
