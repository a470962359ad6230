"""Callbacks of a script's own that keep a random generator, variables, and an object that nothing can store."""

from __future__ import annotations

import logging
import random
from typing import Any

import keras
import numpy as np

from tests.kills.keras import Job


class Noise(keras.callbacks.Callback):
    """Adds noise to a weight behind each epoch, less each time, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(3)
        self.legacy = np.random.RandomState(3)
        self.python = random.Random(3)
        self.seeds = keras.random.SeedGenerator(3)
        self.scale = keras.Variable(0.1)
        self.drawn: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        kernel = self.model.layers[0].kernel
        noise = self.rng.normal(size=kernel.shape) + self.legacy.normal() + self.python.random()
        noise = noise + keras.ops.convert_to_numpy(keras.random.normal((1,), seed=self.seeds))
        kernel.assign_add(self.scale * noise.astype("float32"))
        self.scale.assign(self.scale / 2)
        self.drawn.append(float(noise.sum()))


class Meter:
    """Counts; a lock in it keeps anybody from storing it."""

    def __init__(self) -> None:
        self.count, self.lock = 0, iter(())
        self.log = logging.getLogger("meter")


class Counting(keras.callbacks.Callback):
    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.meter, self._counts = Meter(), counts
        self.log = logging.getLogger("counting")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.meter.count += self._counts
        self.log.debug("a logger remembers which levels it was asked for")


class Losses(keras.callbacks.Callback):
    """Collects the loss of each batch: a list that becomes long, one in a dict, and one that is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = [0.5] * 1020
        self.of = {"loss": [0.5] * 1020, "batch": [1] * 1500}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        self.of["loss"].append(float(logs["loss"]))
        self.of["batch"][len(self.losses) % 1000] += batch


def train_with_losses(job: Job) -> None:
    """Train with a callback that collects the loss of each batch."""
    losses = Losses()
    _train(job, losses)
    job.keep(losses=losses.losses, of=losses.of)


def train(job: Job, counts: bool | None = None) -> None:
    """Train with a callback of the one or of the other kind."""
    other = Noise() if counts is None else Counting(counts=counts)
    _train(job, other)
    if isinstance(other, Noise):
        job.keep(drawn=other.drawn)


def _train(job: Job, other: keras.callbacks.Callback) -> None:
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), loss="mse")
    history = model.fit(x, x[:, :1], batch_size=8, epochs=5, verbose=0, callbacks=job.callbacks(other, by_batch=True))
    job.keep(model=model, history=history)
