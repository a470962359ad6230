"""Training and validation by Python generators that draw random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tests.kills.keras import Job

BATCH = 8


def drawn(rng: Any, x: Any) -> Any:
    rows = rng.integers(0, len(x), BATCH)
    return x[rows], x[rows, :1] * 2


def by_argument(rng: Any, x: Any) -> Iterator[Any]:
    while True:
        yield drawn(rng, x)


def by_global(x: Any) -> Iterator[Any]:
    while True:
        yield batch_of(x)


def batch_of(x: Any) -> Any:
    rows = np.random.randint(0, len(x), BATCH)
    return x[rows], x[rows, :1] * 2


class Sampler:
    """Holds the random generator that its generators share."""

    def __init__(self, x: Any) -> None:
        self.x, self.rng = x, np.random.default_rng(3)

    def batch(self) -> Any:
        return drawn(self.rng, self.x)

    def batches(self) -> Iterator[Any]:
        while True:
            yield self.batch()


def own(x: Any) -> tuple[Any, Any]:
    return by_argument(np.random.default_rng(3), x), by_argument(np.random.default_rng(4), x)


def shared(x: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return by_argument(rng, x), by_argument(rng, x)


def shared_by_object(x: Any) -> tuple[Any, Any]:
    sampler = Sampler(x)
    return sampler.batches(), sampler.batches()


def global_numbers(x: Any) -> tuple[Any, Any]:
    return by_argument(np.random.default_rng(3), x), by_global(x)


KINDS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "own": own,
    "shared": shared,
    "shared by object": shared_by_object,
    "global": global_numbers,
}


def train(job: Job, kind: str) -> None:
    """Train, and lower the learning rate by the validation loss."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    training, validation = KINDS[kind](x)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.02), loss="mse")
    plateau = keras.callbacks.ReduceLROnPlateau(patience=1)
    history = model.fit(
        training,
        validation_data=validation,
        steps_per_epoch=5,
        validation_steps=2,
        epochs=4,
        verbose=0,
        callbacks=job.callbacks(plateau, by_batch=True),
    )
    job.keep(model=model, history=history)
