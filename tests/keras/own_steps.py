"""Models with train steps of their own, in the style of keras.io's examples, and steps that draw random numbers."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np

from tests.keras.data import digits
from tests.keras.models import gradients_of
from tests.kills.keras import Job

layers, ops = keras.layers, keras.ops
LATENT, BATCH = 6, 16


def generator(inputs: int = LATENT) -> keras.Model:
    return keras.Sequential(
        [keras.Input((inputs,)), layers.Dense(12), layers.BatchNormalization(), layers.ReLU(), layers.Dense(64)]
    )


def discriminator() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), layers.Dense(12), layers.LeakyReLU(), layers.Dropout(0.2), layers.Dense(1)])


class GAN(keras.Model):
    """DCGAN: `super().compile()` leaves a default optimizer that trains nothing; two others are built by the first step."""

    clip: float | None = None
    steps_of_discriminator = 1

    def __init__(self) -> None:
        super().__init__()
        self.discriminator, self.generator = discriminator(), generator()
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
        for _ in range(self.steps_of_discriminator):
            noise = keras.random.normal((ops.shape(real)[0], LATENT), seed=self.seeds)
            fake = ops.stop_gradient(self.generator(noise))
            weights = self.discriminator.trainable_weights
            d_loss, gradients = gradients_of(lambda f=fake: self.d_loss(real, f), weights)
            self.d_optimizer.apply_gradients(zip(gradients, weights))
            if self.clip is not None:
                for weight in weights:
                    weight.assign(ops.clip(weight, -self.clip, self.clip))
            self.d_metric.update_state(d_loss)
        weights = self.generator.trainable_weights
        g_loss, gradients = gradients_of(
            lambda n=noise: ops.mean(ops.softplus(-self.discriminator(self.generator(n)))), weights
        )
        self.g_optimizer.apply_gradients(zip(gradients, weights))
        self.g_metric.update_state(g_loss)
        return {"d_loss": self.d_metric.result(), "g_loss": self.g_metric.result()}


class WGAN(GAN):
    """WGAN: weights are clipped between the updates, of which the critic has two in each step."""

    clip = 0.1
    steps_of_discriminator = 2

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
        self.inner = keras.Sequential([keras.Input((64,)), layers.Dense(8, activation="relu"), layers.Dense(64)])
        self.tracker = keras.metrics.Mean(name="my_loss")
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
        return {"my_loss": loss}


class DDIM(keras.Model):
    """DDIM: a normalizer that is adapted, a moving average of the network that a step writes, a validation that draws."""

    def __init__(self) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = generator(64)
        self.ema = keras.models.clone_model(self.network)
        self.seeds = keras.random.SeedGenerator(3)

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.noise_loss = keras.metrics.Mean(name="n_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.noise_loss]

    def drawn(self, data: Any) -> tuple[Any, Any]:
        images = self.normalizer(data[0] if isinstance(data, (tuple, list)) else data)
        return images, keras.random.normal(ops.shape(images), seed=self.seeds)

    def train_step(self, data: Any) -> Any:
        images, noise = self.drawn(data)
        weights = self.network.trainable_weights
        loss, gradients = gradients_of(lambda: self.loss(noise, self.network(images + noise, training=True)), weights)
        self.optimizer.apply_gradients(zip(gradients, weights))
        self.noise_loss.update_state(loss)
        for weight, ema in zip(self.network.weights, self.ema.weights):
            ema.assign(0.9 * ema + 0.1 * weight)
        return {"n_loss": self.noise_loss.result()}

    def test_step(self, data: Any) -> Any:
        images, noise = self.drawn(data)
        self.noise_loss.update_state(self.loss(noise, self.ema(images + noise)))
        return {"n_loss": self.noise_loss.result()}


class Named(keras.Model):
    """Reports the loss of the last batch as "my_loss", in the form that Keras' guide to train steps on JAX has."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def loss_and_updates(self, trainable: Any, others: Any, x: Any) -> Any:
        found, others = self.stateless_call(trainable, others, x)
        return ops.mean(ops.square(found - x[:, :1])), others

    def train_step(self, state: Any, data: Any) -> Any:
        import jax

        trainable, others, owned, metrics = state
        (loss, others), gradients = jax.value_and_grad(self.loss_and_updates, has_aux=True)(trainable, others, data[0])
        trainable, owned = self.optimizer.stateless_apply(owned, gradients, trainable)
        return {"my_loss": loss}, (trainable, others, owned, metrics)


def made(style: str, x: Any) -> Any:
    keras.utils.set_random_seed(5)
    if style in (kinds := {"gan": GAN, "wgan": WGAN, "warmed-up": WarmedUp}):
        model: Any = kinds[style]()
        model.compile(keras.optimizers.Adam(0.01, beta_1=0.5), keras.optimizers.RMSprop(0.01))
    elif style in ("vq", "named"):
        model = VQ() if style == "vq" else Named()
        if style == "named":
            model(x[:8])
        model.compile(keras.optimizers.Adam(0.01))
        model.optimizer.build(model.trainable_variables) if style == "named" else None
    else:
        model = DDIM()
        model.normalizer.adapt(x)
        model.compile(optimizer=keras.optimizers.AdamW(0.01, weight_decay=1e-3), loss=keras.losses.mean_absolute_error)
    return model


def fit(job: Job, style: str, eager: bool = False) -> None:
    """Two epochs of six batches."""
    x = digits(6 * BATCH)[0].reshape(-1, 64)
    model = made(style, x)
    model.run_eagerly = eager
    own = [keras.callbacks.ReduceLROnPlateau("my_loss", mode="min", patience=0, min_delta=9.0)] if style == "vq" else []
    about: dict[str, Any] = {"validation_data": (x[:BATCH],)} if style == "ddim" else {}
    callbacks = job.callbacks(*own, by_batch=True)
    history = model.fit(x, epochs=2, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks, **about)
    job.keep(model=model, history=history)


@functools.cache
def _noise() -> Any:
    import tensorflow as tf

    return tf.function(lambda inputs: tf.random.uniform(tf.shape(inputs)))


class Sampling(layers.Layer):
    """Adds noise by the operation that it is given."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.seeds = kind, keras.random.SeedGenerator(3)

    def call(self, inputs: Any) -> Any:
        if self.kind == "keras":
            return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)
        import tensorflow as tf

        if self.kind == "function":
            return inputs + _noise()(inputs)
        if self.kind == "seeded":
            return inputs + tf.random.normal(tf.shape(inputs), seed=5)
        return inputs if self.kind == "none" else inputs + tf.random.normal(tf.shape(inputs))


class Sampler(keras.callbacks.Callback):
    """Samples by tf.random at the end of each epoch, as monitors of generative models do."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        import tensorflow as tf

        self.sums.append(float(tf.reduce_sum(self.model(tf.random.normal((2, 4))))))


def noisy(job: Job, kind: str, log: str, eager: bool = False) -> None:
    """An autoencoder that draws its noise by tf.random, as many examples do, or by keras.random; `log` is of the callback."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), Sampling(kind), layers.Dense(4)])
    model.compile(keras.optimizers.Adam(0.01), loss="mse", run_eagerly=eager)
    sampler = Sampler()
    callbacks = job.callbacks(sampler, by_batch=True, log=log)
    history = model.fit(x, x, batch_size=8, epochs=3, verbose=0, callbacks=callbacks)
    job.keep(model=model, history=history, sums=sampler.sums)
