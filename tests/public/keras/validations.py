"""Validation data, some of which a fit goes on reading, and a callback that needs their loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tests.kills.keras import Job

BATCH, BATCHES = 8, 6


def endless(x: Any, y: Any) -> Iterator[Any]:
    place = 0
    while True:
        rows = np.arange(place, place + BATCH) % len(x)
        yield x[rows], y[rows]
        place += BATCH


def never_the_same(x: Any, y: Any) -> Iterator[Any]:
    """Yield batches of which no two are equal, however many a thread has drawn ahead."""
    for number, (rows, wanted) in enumerate(endless(x, y)):
        yield rows, wanted * np.float32(1 + number / 8)


def validation(kind: str, x: Any, y: Any) -> dict[str, Any]:
    if kind == "generator":
        return {"validation_data": never_the_same(x, y), "validation_steps": 4}
    if kind == "short generator":
        return {"validation_data": endless(x, y), "validation_steps": 2}
    if kind == "some of the arrays":
        return {"validation_data": (x, y), "validation_steps": 4}
    return {"validation_data": (x, y)}


def train(job: Job, kind: str) -> None:
    """Train, and lower the learning rate by the validation loss."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(BATCH * BATCHES, 4)).astype("float32")
    y = x[:, :1] * np.linspace(1, 2, len(x), dtype="float32")[:, None]
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.02), loss="mse")
    plateau = keras.callbacks.ReduceLROnPlateau(patience=1)
    options = {"batch_size": BATCH, "epochs": 6, "verbose": 0} | validation(kind, x, y)
    history = model.fit(x, y, callbacks=job.callbacks(plateau, by_batch=True), **options)
    job.keep(model=model, history=history)
