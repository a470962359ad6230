"""Callbacks that count, and average weights: in attributes, which come back, and elsewhere, which does not."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.kills.keras import Job

losses: list[float] = []


class Curve(keras.callbacks.Callback):
    """Counts epochs, and collects their losses."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.epochs, self.losses = 0, list[float]()
        self._keeps = keeps

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1
        (self.losses if self._keeps else losses).append(logs["loss"])


def curve(job: Job, *, keeps: bool) -> None:
    """Fit with the callback, and keep what it has counted."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    found = Curve(keeps=keeps)
    model.fit(x, x[:, :1], batch_size=8, epochs=4, verbose=0, callbacks=job.callbacks(found, by_batch=True))
    job.keep(model=model, epochs=found.epochs, losses=found.losses if keeps else losses)


def target(job: Job, *, keeps: bool) -> None:
    """Fit with the callback, and keep the other model."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    model, average = (keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]) for _ in range(2))
    model.compile(keras.optimizers.SGD(0.1), "mse")

    class Average(keras.callbacks.Callback):
        """Averages the weights into the other model."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            for mean, value in zip(average.variables, model.trainable_variables, strict=True):
                mean.assign(0.9 * mean + 0.1 * value)

    found = Average()
    for number, variable in enumerate(average.variables if keeps else ()):
        setattr(found, f"kept_{number}", variable)
    model.fit(x, x[:, :1], batch_size=8, epochs=4, verbose=0, callbacks=job.callbacks(found, by_batch=True))
    job.keep(model=model, average=[np.asarray(one).tolist() for one in average.get_weights()])
