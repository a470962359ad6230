"""Data whose length nobody knows: each pass ends with an attempt to take a step that finds no batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tests.kills.keras import Job

BATCH = 4


class Rates(keras.callbacks.Callback):
    """Sets the learning rate at the end of each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.02 / (2 + epoch)


class Shrink(keras.callbacks.Callback):
    """Writes weights before each attempt, also before the one that finds no batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.layers[-1].bias.assign(0.5 * self.model.layers[-1].bias + 0.01 * batch)


def numbers(batches: int) -> Any:
    """Return a dataset of so many batches, which does not know its length."""
    import tensorflow as tf

    x = np.random.default_rng(0).normal(size=(batches * BATCH, 4)).astype("float32")

    def rows() -> Iterator[Any]:
        yield from zip(x, x[:, :1] * 2, strict=True)

    spec = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
    return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(BATCH, drop_remainder=True)


def train(job: Job, batches: int, executions: int = 1, log: str = "auto", shrinks: bool = False) -> None:
    """Train three epochs, with another rate in each."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), loss="mse", steps_per_execution=executions)
    others = [*([Shrink()] if shrinks else []), Rates()]
    callbacks = job.callbacks(*others, by_batch=True, log=log, checkpoint_every=1000)
    history = model.fit(numbers(batches), epochs=3, verbose=0, callbacks=callbacks)
    job.keep(model=model, history=history)
