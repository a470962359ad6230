"""Denoising diffusion: a normalizer, an averaged network, a validation that samples, images and checkpoints of each epoch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.kills.keras import Job
from tests.public.keras.data import digits, gradients_of

_SHAPE, _EMA = (8, 8, 1), 0.9


def network() -> keras.Model:
    images, variances = keras.Input(_SHAPE), keras.Input((1, 1, 1))
    embedded = layers.UpSampling2D(size=8, interpolation="nearest")(ops.sin(6.0 * variances))
    h = layers.Concatenate()([layers.Conv2D(4, kernel_size=1)(images), embedded])
    residual = layers.Conv2D(4, kernel_size=1)(h)
    h = layers.BatchNormalization(center=False, scale=False)(h)
    h = layers.Conv2D(4, kernel_size=3, padding="same", activation="swish")(h)
    return keras.Model([images, variances], layers.Conv2D(1, kernel_size=1)(layers.Add()([h, residual])))


class DiffusionModel(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = network()
        self.ema_network = keras.models.clone_model(self.network)
        self.seeds = keras.random.SeedGenerator(3)
        self.built = True  # or Keras saves no weights of a model that is never called

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def denoised(self, images: Any, noise: Any, times: Any, *, training: bool) -> tuple[Any, Any]:
        signal, scale = ops.cos(times), ops.sin(times)
        noisy = signal * images + scale * noise
        chosen = self.network if training else self.ema_network
        found = chosen([noisy, scale**2], training=training)
        return found, (noisy - scale * found) / (signal + 1e-3)

    def drawn(self, data: Any) -> tuple[Any, Any, Any]:
        images = self.normalizer(data[0] if isinstance(data, (tuple, list)) else data, training=True)
        noise = keras.random.normal(ops.shape(images), seed=self.seeds)
        return images, noise, keras.random.uniform((ops.shape(images)[0], 1, 1, 1), 0.05, 1.5, seed=self.seeds)

    def noted(self, images: Any, noise: Any, found: tuple[Any, Any]) -> dict[str, Any]:
        self.noise_loss_tracker.update_state(self.loss(noise, found[0]))
        self.image_loss_tracker.update_state(self.loss(images, found[1]))
        return {tracker.name: tracker.result() for tracker in self.metrics}

    def train_step(self, data: Any) -> Any:
        images, noise, times = self.drawn(data)
        found: list[Any] = []

        def loss() -> Any:
            found[:] = self.denoised(images, noise, times, training=True)
            return self.loss(noise, found[0])

        weights = self.network.trainable_weights
        _, gradients = gradients_of(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights))
        for weight, average in zip(self.network.weights, self.ema_network.weights):
            average.assign(_EMA * average + (1 - _EMA) * weight)
        return self.noted(images, noise, (found[0], found[1]))

    def test_step(self, data: Any) -> Any:
        images, noise, times = self.drawn(data)
        return self.noted(images, noise, self.denoised(images, noise, times, training=False))

    def sampled(self, count: int) -> Any:
        noise = keras.random.normal((count, *_SHAPE), seed=self.seeds)
        return self.denoised(0 * noise, noise, ops.full((count, 1, 1, 1), 1.5), training=False)[1]


def train(job: Job) -> None:
    keras.utils.set_random_seed(4)
    x, _ = digits(80)
    model = DiffusionModel()
    model.compile(optimizer=keras.optimizers.AdamW(1e-2, weight_decay=1e-4), loss=keras.losses.mean_absolute_error)
    model.normalizer.adapt(x)

    def plot_images(epoch: int, logs: Any = None) -> None:
        np.save(job.files / f"epoch_{epoch}.npy", ops.convert_to_numpy(model.sampled(2)))

    best = keras.callbacks.ModelCheckpoint(
        str(job.files / "best.weights.h5"), save_weights_only=True, monitor="val_i_loss", mode="min", save_best_only=True
    )
    plots = keras.callbacks.LambdaCallback(on_epoch_end=plot_images)
    history = model.fit(x, epochs=3, batch_size=16, validation_data=(x[:32],), verbose=2, callbacks=job.callbacks(plots, best))
    job.keep(model=model, history=history)
