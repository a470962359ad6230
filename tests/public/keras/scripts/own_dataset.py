"""A PyDataset with an order and a random generator of its own, which augments its batches."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from tests.kills.keras import Job
from tests.public.keras.data import digits

_BATCH = 12


class Images(keras.utils.PyDataset):
    """Draws the noise of each batch from its generator, or from one that is seeded by the batch's number."""

    def __init__(self, x: Any, y: Any, draws: str, workers: int) -> None:
        super().__init__(workers=workers)
        self.x, self.y, self.draws, self.epoch = x, y, draws, 0
        self.rng = np.random.default_rng(77)
        self.order = np.arange(len(x))

    def __len__(self) -> int:
        return len(self.x) // _BATCH

    def __getitem__(self, index: int) -> Any:
        chosen = self.order[index * _BATCH : (index + 1) * _BATCH]
        rng = self.rng if self.draws == "in turn" else np.random.default_rng((self.epoch, index))
        noise = rng.normal(scale=0.1, size=self.x[chosen].shape).astype("float32")
        return self.x[chosen] + noise, self.y[chosen]

    def on_epoch_end(self) -> None:
        self.epoch += 1
        self.order = np.random.default_rng(self.epoch).permutation(len(self.x))


def train(job: Job, draws: str, workers: int) -> None:
    keras.utils.set_random_seed(61)
    x, y = digits(72)
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(12, activation="relu"), layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = model.fit(Images(x, y, draws, workers), epochs=3, shuffle=False, verbose=2, callbacks=job.callbacks())
    job.keep(model=model, history=history)
