"""Models in the style of keras.io's generative examples: train steps of their own, optimizers that nothing has built."""

from __future__ import annotations

import os
import signal
from typing import Any

import keras
import numpy as np

from tests.keras.scenario.data import stored_digits
from tranlogs_keras import TranLogsCallback

layers, ops = keras.layers, keras.ops
LATENT, BATCH = 6, 16


def gradients_of(loss_of: Any, variables: list[Any]) -> tuple[Any, Any]:
    """A loss and its gradients, on TensorFlow and on PyTorch."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of()
        return loss, tape.gradient(loss, variables)
    import torch

    loss = loss_of()
    return loss, list(torch.autograd.grad(loss, [v.value for v in variables]))


def generator() -> keras.Model:
    return keras.Sequential(
        [keras.Input((LATENT,)), layers.Dense(12), layers.BatchNormalization(), layers.ReLU(), layers.Dense(64)]
    )


def discriminator() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), layers.Dense(12), layers.LeakyReLU(), layers.Dropout(0.2), layers.Dense(1)])


class GAN(keras.Model):
    """DCGAN: `super().compile()` leaves a default optimizer that trains nothing; two others are built by the first step."""

    clip: float | None = None

    def __init__(self, discriminator: keras.Model, generator: keras.Model) -> None:
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.seeds = keras.random.SeedGenerator(7)
        self.built = True

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.d_metric = keras.metrics.Mean(name="d_loss")
        self.g_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_metric, self.g_metric]

    def d_loss(self, real: Any, fake: Any) -> Any:
        return ops.mean(ops.softplus(-self.discriminator(real))) + ops.mean(ops.softplus(self.discriminator(fake)))

    def train_step(self, data: Any) -> Any:
        real = data[0] if isinstance(data, (tuple, list)) else data
        noise = keras.random.normal((ops.shape(real)[0], LATENT), seed=self.seeds)
        fake = ops.stop_gradient(self.generator(noise))
        weights = self.discriminator.trainable_weights
        d_loss, gradients = gradients_of(lambda: self.d_loss(real, fake), weights)
        self.d_optimizer.apply_gradients(zip(gradients, weights))
        if self.clip is not None:
            for weight in weights:
                weight.assign(ops.clip(weight, -self.clip, self.clip))
        weights = self.generator.trainable_weights
        g_loss, gradients = gradients_of(lambda: ops.mean(ops.softplus(-self.discriminator(self.generator(noise)))), weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights))
        self.d_metric.update_state(d_loss)
        self.g_metric.update_state(g_loss)
        return {"d_loss": self.d_metric.result(), "g_loss": self.g_metric.result()}


class WGAN(GAN):
    """WGAN: weights are clipped between the two updates."""

    clip = 0.1

    def d_loss(self, real: Any, fake: Any) -> Any:
        return ops.mean(self.discriminator(fake)) - ops.mean(self.discriminator(real))


class WarmedUp(GAN):
    """The generator is trained once the discriminator has had four steps: its optimizer is built in the middle of the run."""

    def train_step(self, data: Any) -> Any:
        if int(self.d_optimizer.iterations) >= 4:
            return super().train_step(data)
        weights = self.discriminator.trainable_weights
        loss, gradients = gradients_of(lambda: self.d_loss(data, 0 * data), weights)
        self.d_optimizer.apply_gradients(zip(gradients, weights))
        self.d_metric.update_state(loss)
        return {"d_loss": self.d_metric.result(), "g_loss": self.g_metric.result()}


class VQ(keras.Model):
    """VQ-VAE: the compiled optimizer trains the variables of a model inside, which `train_step` names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.Sequential([keras.Input((64,)), layers.Dense(8, activation="tanh"), layers.Dense(64)])
        self.unused = keras.Sequential([keras.Input((64,)), layers.Dense(3)])
        self.tracker = keras.metrics.Mean(name="loss")
        self.built = True

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> Any:
        x = data[0] if isinstance(data, (tuple, list)) else data
        weights = self.inner.trainable_variables
        loss, gradients = gradients_of(lambda: ops.mean((self.inner(x) - x) ** 2), weights)
        self.optimizer.apply_gradients(zip(gradients, weights))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


class DDIM(keras.Model):
    """DDIM: a normalizer that is adapted, and an exponential moving average of the network, written by the train step."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = generator_like()
        self.ema = keras.models.clone_model(self.network)
        self.seeds = keras.random.SeedGenerator(3)

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.noise_loss = keras.metrics.Mean(name="n_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.noise_loss]

    def train_step(self, data: Any) -> Any:
        images = self.normalizer(data[0] if isinstance(data, (tuple, list)) else data)
        noise = keras.random.normal(ops.shape(images), seed=self.seeds)
        weights = self.network.trainable_weights
        loss, gradients = gradients_of(lambda: self.loss(noise, self.network(images + noise, training=True)), weights)
        self.optimizer.apply_gradients(zip(gradients, weights))
        self.noise_loss.update_state(loss)
        for weight, ema in zip(self.network.weights, self.ema.weights):
            ema.assign(0.9 * ema + 0.1 * weight)
        return {"n_loss": self.noise_loss.result()}


def generator_like() -> keras.Model:
    return keras.Sequential(
        [keras.Input((64,)), layers.Dense(12), layers.BatchNormalization(), layers.ReLU(), layers.Dense(64)]
    )


def made(style: str, x: Any) -> Any:
    keras.utils.set_random_seed(5)
    if style in (kinds := {"gan": GAN, "wgan": WGAN, "warmed-up": WarmedUp}):
        model: Any = kinds[style](discriminator(), generator())
        model.compile(keras.optimizers.Adam(0.01, beta_1=0.5), keras.optimizers.RMSprop(0.01))
        return model
    if style == "vq":
        model = VQ()
        model.compile(optimizer=keras.optimizers.Adam(0.01))
        return model
    model = DDIM()
    model.normalizer.adapt(x)
    model.compile(optimizer=keras.optimizers.AdamW(0.01, weight_decay=1e-3), loss=keras.losses.mean_absolute_error)
    return model


_BATCHES = [0]  # of this process; an attribute of a callback would come back with the run


class Death(keras.callbacks.Callback):
    def __init__(self, after: int | None) -> None:
        super().__init__()
        self._after = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        _BATCHES[0] += 1
        if self._after == _BATCHES[0]:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(run: str | None, style: str, die: int | None = None, eager: bool = False) -> dict[str, Any]:
    """Two epochs of six batches; without a run, plain Keras in the order of the data."""
    x = (stored_digits()[0][: 6 * BATCH] / 16).astype("float32")
    model = made(style, x)
    model.run_eagerly = eager
    callbacks = [] if run is None else [TranLogsCallback(run, durability="process", segment_bytes=1 << 20)]
    history = model.fit(x, epochs=2, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[*callbacks, Death(die)])
    optimizers = [o for o in vars(model).values() if isinstance(o, keras.optimizers.Optimizer)]
    variables = [
        *model.variables,
        *(v for o in {id(o): o for o in [model.optimizer, *optimizers]}.values() for v in o.variables),
    ]
    return {
        "state": [np.asarray(ops.convert_to_numpy(v)).tobytes() for v in variables],
        "history": {name: [float(v) for v in values] for name, values in history.history.items()},
        "exact": callbacks[0].report.exact if callbacks else None,
        "step": callbacks[0].report.step if callbacks else None,
    }
