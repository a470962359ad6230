"""A variational autoencoder: on TensorFlow and PyTorch with a train step and metrics of its own, on JAX with its own loss."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from tests.kills.keras import Job
from tests.public.keras.data import digits

_LATENT = 2


class Sampling(layers.Layer):
    """Draws a point from the distribution that the encoder gives."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs: Any) -> Any:
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


def encoder() -> keras.Model:
    image = keras.Input((8, 8, 1))
    h = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(image)
    h = layers.Dense(8, activation="relu")(layers.Flatten()(h))
    mean, log_variance = layers.Dense(_LATENT)(h), layers.Dense(_LATENT)(h)
    return keras.Model(image, [mean, log_variance, Sampling()([mean, log_variance])])


def decoder() -> keras.Model:
    h = layers.Dense(4 * 4 * 4, activation="relu")(latent := keras.Input((_LATENT,)))
    h = layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid")(layers.Reshape((4, 4, 4))(h))
    return keras.Model(latent, h)


class VAE(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder(), decoder()
        self.total, self.reconstruction, self.divergence = (
            keras.metrics.Mean(name=name) for name in ("total_loss", "reconstruction_loss", "kl_loss")
        )

    def call(self, inputs: Any) -> Any:
        return self.decoder(self.encoder(inputs)[2])

    @property
    def metrics(self) -> list[Any]:
        return [self.total, self.reconstruction, self.divergence]

    def losses_of(self, data: Any) -> tuple[Any, Any, Any]:
        mean, log_variance, z = self.encoder(data)
        rebuilt = self.decoder(z)
        reconstruction = ops.mean(ops.sum(keras.losses.binary_crossentropy(data, rebuilt), axis=(1, 2)))
        divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        divergence = ops.mean(ops.sum(divergence, axis=1))
        return reconstruction + divergence, reconstruction, divergence

    def train_step(self, data: Any) -> Any:
        data = data[0] if isinstance(data, (tuple, list)) else data
        step = self.step_of_tensorflow if keras.backend.backend() == "tensorflow" else self.step_of_torch
        losses = step(data)
        for tracker, loss in zip(self.metrics, losses, strict=True):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.metrics}

    def step_of_tensorflow(self, data: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            losses = self.losses_of(data)
        gradients = tape.gradient(losses[0], self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        return losses

    def step_of_torch(self, data: Any) -> Any:
        """As in Keras' guide to custom train steps on PyTorch."""
        import torch

        self.zero_grad()
        losses = self.losses_of(data)
        losses[0].backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return losses


class OwnLoss(keras.Model):
    """The same with Keras' train step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder(), decoder()

    def call(self, inputs: Any) -> Any:
        mean, log_variance, z = self.encoder(inputs)
        self.add_loss(-0.5 * ops.mean(1 + log_variance - ops.square(mean) - ops.exp(log_variance)))
        return self.decoder(z)


def train(job: Job) -> None:
    keras.utils.set_random_seed(3)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # TensorFlow rewrites the sums of a step otherwise in some processes: of ten runs that nobody killed, three printed a
        # loss that differed in its last bit.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    x, _ = digits(90)
    if keras.backend.backend() == "jax":
        model: Any = OwnLoss()
        model.compile(keras.optimizers.Adam(0.01), loss="binary_crossentropy")
        history = model.fit(x, x, epochs=3, batch_size=16, verbose=2, callbacks=job.callbacks())
    else:
        model = VAE()
        model.compile(optimizer=keras.optimizers.Adam(0.01))
        history = model.fit(x, epochs=3, batch_size=16, verbose=2, callbacks=job.callbacks())
    job.say("decoded", ops.sum(model.decoder(ops.ones((1, _LATENT)))))
    job.keep(model=model, history=history)
