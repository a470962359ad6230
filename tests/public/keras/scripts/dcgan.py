"""A GAN with two optimizers in its train step, and a callback that writes images at the end of each epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.kills.keras import Job
from tests.public.keras.data import digits, gradients_of

LATENT = 6


def discriminator() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, kernel_size=4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(1, activation="sigmoid"),
        ],
        name="discriminator",
    )


def generator() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((LATENT,)),
            layers.Dense(4 * 4 * 4),
            layers.BatchNormalization(),
            layers.Reshape((4, 4, 4)),
            layers.Conv2DTranspose(4, kernel_size=4, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Conv2D(1, kernel_size=3, padding="same", activation="sigmoid"),
        ],
        name="generator",
    )


class GAN(keras.Model):
    def __init__(self, discriminator: keras.Model, generator: keras.Model) -> None:
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.built = True

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, data: Any) -> Any:
        real = data[0] if isinstance(data, (tuple, list)) else data
        count = ops.shape(real)[0]
        noise = keras.random.normal((count, LATENT), seed=self.seed_generator)
        images = ops.concatenate([ops.stop_gradient(self.generator(noise, training=True)), real], axis=0)
        labels = ops.concatenate([0.9 * ops.ones((count, 1)), ops.zeros((count, 1))], axis=0)
        labels += 0.05 * keras.random.uniform(ops.shape(labels), seed=self.seed_generator)
        weights = self.discriminator.trainable_weights
        d_loss, gradients = gradients_of(lambda: self.loss_fn(labels, self.discriminator(images, training=True)), weights)
        self.d_optimizer.apply_gradients(zip(gradients, weights))

        noise = keras.random.normal((count, LATENT), seed=self.seed_generator)
        misleading = ops.zeros((count, 1))
        weights = self.generator.trainable_weights
        g_loss, gradients = gradients_of(
            lambda: self.loss_fn(misleading, self.discriminator(self.generator(noise, training=True))), weights
        )
        self.g_optimizer.apply_gradients(zip(gradients, weights))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


class GANMonitor(keras.callbacks.Callback):
    """Writes what the generator makes of new noise."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        super().__init__()
        self.folder, self.count = folder, count
        self.seed_generator = keras.random.SeedGenerator(42)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        noise = keras.random.normal((self.count, LATENT), seed=self.seed_generator)
        images = ops.convert_to_numpy(self.model.generator(noise))
        for i in range(self.count):
            np.save(self.folder / f"generated_{epoch:03d}_{i}.npy", images[i])


def train(job: Job) -> None:
    keras.utils.set_random_seed(5)
    x, _ = digits(80)
    model = GAN(discriminator(), generator())
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3), keras.losses.BinaryCrossentropy())
    history = model.fit(x, batch_size=16, epochs=3, verbose=2, callbacks=job.callbacks(GANMonitor(job.files)))
    job.keep(model=model, history=history)
