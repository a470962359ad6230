"""Other callbacks of a fit, by name: they write learning rates and weights, and keep state of many kinds."""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import Any

import keras
import numpy as np


class BatchRate(keras.callbacks.Callback):
    """Another learning rate at each batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 1e-2 / (1 + int(self.model.optimizer.iterations))


_turns = itertools.count()  # begins anew in each process


class GlobalRate(keras.callbacks.Callback):
    """Another learning rate at each batch, by a counter that no run brings back."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 1e-2 / (1 + next(_turns))


class Timing(keras.callbacks.Callback):
    """The time of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.times.append(time.perf_counter())


class Clamp(keras.callbacks.Callback):
    """Writes weights that no step writes."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch % 4 == 1:
            kernel = self.model.layers[-1].kernel
            kernel.assign(keras.ops.clip(kernel, -0.2, 0.2))


class Thaw(keras.callbacks.Callback):
    """Writes weights of a frozen layer."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for layer in self.model.layers:
            if batch % 4 == 1 and layer.variables and not layer.trainable:
                layer.kernel.assign(layer.kernel * 1.25)


class Counting(keras.callbacks.Callback):
    """Counters of its own, as other callbacks see them."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.best = 1e9

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.best = min(self.best, float(logs["loss"]))


class Collecting(keras.callbacks.Callback):
    """State of kinds that are no plain numbers, written at each batch, on which the learning rate depends."""

    def __init__(self) -> None:
        super().__init__()
        self.last: deque[float] = deque([0.0], maxlen=5)
        self.seen: set[int] = set()
        self.average = np.zeros(20_000)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.last.append(float(logs["loss"]))
        self.seen.add(batch)
        self.average *= 0.5
        self.average += float(logs["loss"]) * np.arange(20_000)
        self.model.optimizer.learning_rate = 1e-3 * (1 + sum(self.last) + len(self.seen) + float(self.average[-1]) / 1e6)


class Cyclic(keras.callbacks.Callback):
    """State that cannot be told."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.held: dict[str, Any] = {}
        self.held["self"] = self.held


def siblings(names: list[str]) -> list[Any]:
    """Callbacks by name."""
    made = {
        "stopping": lambda: keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10.0, restore_best_weights=True),
        "plateau": lambda: keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0, factor=0.5, cooldown=1),
        "schedule": lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7),
        "batch-rate": BatchRate,
        "global-rate": GlobalRate,
        "timing": Timing,
        "clamp": Clamp,
        "thaw": Thaw,
        "collecting": Collecting,
        "cyclic": Cyclic,
        "counting": Counting,
    }
    return [made[name]() for name in names]
