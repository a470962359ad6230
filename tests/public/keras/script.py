"""The frame of the scripts in `scripts/`: callbacks, places of death, and what two runs of a script are compared by.

A script's process is killed at one of these places:

    ["failpoint", name, n]   where the log, a boundary, a checkpoint or a recovery passes a fail point for the n-th time
    ["before", n]            at the n-th end of an epoch, before the script's own callbacks have had their turn
    ["after", n]             there, after their turn
    ["validation", n]        after the n-th batch of a validation
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

import tranlogs.base.failpoints
from tests.keras.scenario.data import stored_digits
from tranlogs_keras import TranLogsCallback

_seen: Counter[str] = Counter()  # of this process; an attribute of a callback would come back with the run


class Death(keras.callbacks.Callback):
    """SIGKILL at a place that callbacks see."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self._name, self._number = name, number

    def _count(self) -> None:
        _seen[self._name] += 1
        if _seen[self._name] == self._number:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._name != "validation":
            self._count()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._name == "validation":
            self._count()


class Script:
    """One process of a script.

    Args:
        folder: of the run and of the script's files.
        die: the place of death, or None.
        options: of the TranLogsCallback.

    Attributes:
        files: folder for what the script writes.
        logger: the TranLogsCallback.
    """

    def __init__(self, folder: str, die: list[Any] | None, **options: Any) -> None:
        self.files = Path(folder) / "files"
        self.files.mkdir(parents=True, exist_ok=True)
        self.logger = TranLogsCallback(f"{folder}/run", segment_bytes=1 << 20, **options)
        self._deaths: dict[str, list[Any]] = {"before": [], "after": [], "validation": []}
        if die and die[0] == "failpoint":
            tranlogs.base.failpoints._rules = tranlogs.base.failpoints._parse(f"{die[1]}=kill@{die[2]}")
        elif die:
            self._deaths[die[0]].append(Death(*die))

    def callbacks(self, *others: Any) -> list[Any]:
        """Return the callbacks of a fit: TranLogs, then the script's own, and a death where it is due."""
        deaths = self._deaths
        return [self.logger, *deaths["before"], *others, *deaths["validation"], *deaths["after"]]

    def outcome(self, model: Any, *histories: Any, **others: Any) -> dict[str, Any]:
        """Return what two runs of a script are compared by, and the report."""
        optimizers = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
        optimizers = list({id(o): o for o in [model.optimizer, *optimizers] if o is not None}.values())
        values = [*model.variables, *(variable for optimizer in optimizers for variable in optimizer.variables)]
        state = {f"{i} {v.path}": np.asarray(keras.ops.convert_to_numpy(v)).tobytes() for i, v in enumerate(values)}
        return {
            "state": state | {"numpy": repr(np.random.get_state()), "python": repr(random.getstate())},
            "histories": [{name: [float(v) for v in held] for name, held in h.history.items()} for h in histories],
            "epochs": [list(h.epoch) for h in histories],
            "files": {str(path.relative_to(self.files)): _content(path) for path in self.files.rglob("*") if path.is_file()},
            "others": others,
            "exact": self.logger.report.exact,
            "notes": list(self.logger.report.notes),
        }


def say(what: str, *numbers: Any) -> None:
    """Print numbers of which every bit counts."""
    print(f"> {what}:", *(repr(float(number)) for number in numbers), flush=True)


def _content(path: Path) -> Any:
    """Return a file's content, without times."""
    if not path.name.endswith(".weights.h5"):
        return path.read_bytes()
    found: dict[str, bytes] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()].tobytes()} if isinstance(item, h5py.Dataset) else {}))
    return found


def digits(count: int, *, first: int = 0) -> tuple[Any, Any]:
    """Return images of digits (8 x 8 x 1, from 0 to 1) and their labels."""
    images, labels = stored_digits()
    chosen = slice(first, first + count)
    return (images[chosen].reshape(-1, 8, 8, 1) / 16).astype("float32"), labels[chosen].astype("int64")


def gradients_of(loss_of: Any, variables: list[Any]) -> tuple[Any, Any]:
    """Return a loss and its gradients, on TensorFlow and on PyTorch."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of()
        return loss, tape.gradient(loss, variables)
    import torch

    loss = loss_of()
    return loss, list(torch.autograd.grad(loss, [v.value for v in variables], allow_unused=True))
