"""Callbacks of all kinds: rates, stopping, checkpoints, a table of numbers, and one of the script's own with a state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from tests.keras.data import digits
from tests.kills.keras import Job


class Journal(keras.callbacks.Callback):
    """Averages the losses of batches, and writes a line for each epoch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.average, self.steps = path, 0.0, 0
        self.best: dict[str, float] = {}
        self.norms: list[np.ndarray[Any, Any]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.average += (float(logs["loss"]) - self.average) / self.steps

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.norms.append(np.array([np.linalg.norm(weight) for weight in self.model.get_weights()]))
        self.best = {name: min(float(value), self.best.get(name, np.inf)) for name, value in logs.items()}
        lines = self.path.read_text().splitlines()[:epoch] if self.path.exists() else []
        self.path.write_text("\n".join([*lines, f"{epoch} {self.steps} {self.average!r} {sorted(self.best.items())}"]) + "\n")


def warmed_up(epoch: int, rate: float) -> float:
    return rate * 1.5 if epoch < 2 else rate


def train(job: Job) -> None:
    keras.utils.set_random_seed(71)
    x, y = digits(80)
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(12, activation="relu"), layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    journal = Journal(job.files / "journal.txt")
    callbacks = [
        keras.callbacks.LearningRateScheduler(warmed_up),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=0, min_delta=0.3, cooldown=1),
        keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.2, restore_best_weights=True, start_from_epoch=1),
        keras.callbacks.ModelCheckpoint(str(job.files / "best.weights.h5"), save_best_only=True, save_weights_only=True),
        keras.callbacks.ModelCheckpoint(str(job.files / "{epoch:02d}.weights.h5"), save_weights_only=True),
        keras.callbacks.CSVLogger(str(job.files / "table.csv")),
        keras.callbacks.CSVLogger(str(job.files / "appended.csv"), append=True),
        keras.callbacks.TerminateOnNaN(),
        journal,
    ]
    history = model.fit(
        x, y, batch_size=16, epochs=5, verbose=2, validation_data=(x[:16], y[:16]), callbacks=job.callbacks(*callbacks)
    )
    job.say("average", journal.average)
    norms = [norm.tobytes() for norm in journal.norms]
    job.keep(model=model, history=history, norms=norms, steps=journal.steps, best=journal.best)
