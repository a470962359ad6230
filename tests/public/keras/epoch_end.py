"""A train_step that reports names of its own, as WGAN, VQ-VAE and DDIM do."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.public.keras.killed import Kill, outcome
from tranlogs_keras import TranLogsCallback


class Named(keras.Model):
    """Reports the loss of the last batch as "my_loss"."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"my_loss": loss}


def named(run: str, die: list[Any] | None) -> dict[str, Any]:
    """Train with a callback that needs the reported value."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    model = Named()
    model(x[:8])
    model.compile(keras.optimizers.SGD(0.1))
    callback = TranLogsCallback(run, segment_bytes=1 << 20, verbose=False)
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="my_loss", mode="min", patience=1, min_delta=0.1)
    history = model.fit(x, x[:, :1], batch_size=8, epochs=5, verbose=0, callbacks=[callback, Kill(die), plateau])
    return outcome(model, callback, history)
