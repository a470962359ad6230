"""VQ-VAE: a codebook layer with losses of its own, and a trainer model that wraps the autoencoder."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from tests.kills.keras import Job
from tests.public.keras.data import digits, gradients_of

_DIMENSIONS, _CODES = 4, 8


class VectorQuantizer(layers.Layer):
    """Replaces each vector by the nearest code; gradients pass through."""

    def build(self, shape: Any) -> None:
        self.embeddings = self.add_weight(shape=(_DIMENSIONS, _CODES), initializer="random_uniform", name="codes")

    def call(self, x: Any) -> Any:
        flat = ops.reshape(x, (-1, _DIMENSIONS))
        distances = (
            ops.sum(flat**2, axis=1, keepdims=True)
            + ops.sum(self.embeddings**2, axis=0)
            - 2 * ops.matmul(flat, self.embeddings)
        )
        chosen = ops.one_hot(ops.argmin(distances, axis=1), _CODES)
        quantized = ops.reshape(ops.matmul(chosen, ops.transpose(self.embeddings)), ops.shape(x))
        self.add_loss(0.25 * ops.mean((ops.stop_gradient(quantized) - x) ** 2))
        self.add_loss(ops.mean((quantized - ops.stop_gradient(x)) ** 2))
        return x + ops.stop_gradient(quantized - x)


def autoencoder() -> keras.Model:
    image = keras.Input((8, 8, 1))
    h = layers.Conv2D(8, 3, activation="relu", strides=2, padding="same")(image)
    h = VectorQuantizer()(layers.Conv2D(_DIMENSIONS, 1, padding="same")(h))
    return keras.Model(image, layers.Conv2DTranspose(1, 3, strides=2, padding="same")(h))


class Trainer(keras.Model):
    def __init__(self, variance: float) -> None:
        super().__init__()
        self.variance, self.vqvae = variance, autoencoder()
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [self.total_loss_tracker, self.reconstruction_loss_tracker]

    def train_step(self, data: Any) -> Any:
        x = data[0] if isinstance(data, (tuple, list)) else data
        weights = self.vqvae.trainable_variables
        found: dict[str, Any] = {}

        def total() -> Any:
            found["reconstruction"] = ops.mean((x - self.vqvae(x)) ** 2) / self.variance
            return found["reconstruction"] + sum(self.vqvae.losses)

        loss, gradients = gradients_of(total, weights)
        self.optimizer.apply_gradients(zip(gradients, weights))
        self.total_loss_tracker.update_state(loss)
        self.reconstruction_loss_tracker.update_state(found["reconstruction"])
        return {"loss": self.total_loss_tracker.result(), "reconstruction_loss": self.reconstruction_loss_tracker.result()}


def train(job: Job) -> None:
    keras.utils.set_random_seed(9)
    x, _ = digits(90)
    model = Trainer(float(x.var()))
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    history = model.fit(x, epochs=3, batch_size=16, verbose=2, callbacks=job.callbacks())
    job.say("rebuilt", ops.sum(model.vqvae(x[:8])))
    job.keep(model=model, history=history)
