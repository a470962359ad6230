"""A siamese network with a contrastive loss; a PyDataset draws the pairs of each batch from Python's random numbers."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.kills.keras import Job
from tests.public.keras.data import digits


class Pairs(keras.utils.PyDataset):
    """Half of the pairs of a batch are of one class."""

    def __init__(self, x: Any, y: Any, batches: int, pairs: int = 12) -> None:
        super().__init__()
        self.x, self.batches, self.pairs = x, batches, pairs
        self.by_class = {int(label): np.flatnonzero(y == label) for label in np.unique(y)}

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Any:
        left, right, equal = [], [], []
        for i in range(self.pairs):
            one, other = random.sample(sorted(self.by_class), 2)
            other = one if i % 2 else other
            left.append(self.x[random.choice(self.by_class[one])])
            right.append(self.x[random.choice(self.by_class[other])])
            equal.append(float(i % 2))
        return (np.stack(left), np.stack(right)), np.array(equal, "float32")[:, None]


def euclidean(vectors: Any) -> Any:
    left, right = vectors
    return ops.sqrt(ops.maximum(ops.sum(ops.square(left - right), axis=1, keepdims=True), 1e-7))


def contrastive(equal: Any, distance: Any) -> Any:
    return ops.mean(equal * ops.square(distance) + (1 - equal) * ops.square(ops.maximum(1.0 - distance, 0)))


def train(job: Job) -> None:
    keras.utils.set_random_seed(21)
    x, y = digits(100)
    image = keras.Input((8, 8, 1))
    h = layers.BatchNormalization()(image)
    h = layers.Conv2D(4, 3, activation="tanh")(h)
    h = layers.AveragePooling2D(2)(h)
    tower = keras.Model(image, layers.Dense(6, activation="tanh")(layers.BatchNormalization()(layers.Flatten()(h))))
    left, right = keras.Input((8, 8, 1)), keras.Input((8, 8, 1))
    distance = layers.Lambda(euclidean, output_shape=(1,))([tower(left), tower(right)])
    outputs = layers.Dense(1, activation="sigmoid")(layers.BatchNormalization()(distance))
    model = keras.Model([left, right], outputs)
    model.compile(loss=contrastive, optimizer="RMSprop", metrics=["accuracy"])
    history = model.fit(Pairs(x, y, 5), validation_data=Pairs(x, y, 2), epochs=3, verbose=2, callbacks=job.callbacks())
    job.say("distances", *ops.convert_to_numpy(model([x[:3], x[3:6]]))[:, 0])
    job.keep(model=model, history=history)
