"""An autoencoder that draws its noise by tf.random, as many examples do, or by keras.random."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.kills.keras import Job


class Sampling(keras.layers.Layer):
    """Adds noise by the operation that it is given."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.seeds = kind, keras.random.SeedGenerator(3)

    def call(self, inputs: Any) -> Any:
        if self.kind == "keras":
            return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)
        if self.kind == "function":
            return inputs + noise(inputs)
        if self.kind == "seeded":
            return inputs + tf.random.normal(tf.shape(inputs), seed=5)
        if self.kind == "none":
            return inputs
        return inputs + tf.random.normal(tf.shape(inputs))


@tf.function
def noise(inputs: Any) -> Any:
    return tf.random.uniform(tf.shape(inputs))


class Sampler(keras.callbacks.Callback):
    """Samples at the end of each epoch, as monitors of generative models do."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.sums.append(float(tf.reduce_sum(self.model(tf.random.normal((2, 4))))))


def train(job: Job, kind: str, log: str, eager: bool = False) -> None:
    """Train; `log` is that of the callback."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Sampling(kind), keras.layers.Dense(4)])
    model.compile(keras.optimizers.Adam(0.01), loss="mse", run_eagerly=eager)
    sampler = Sampler()
    callbacks = job.callbacks(sampler, by_batch=True, log=log)
    history = model.fit(x, x, batch_size=8, epochs=3, verbose=0, callbacks=callbacks)
    job.keep(model=model, history=history, sums=sampler.sums)
