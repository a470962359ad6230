"""Small models with the layers whose state or updates are special, optimizers, and how a script makes and derives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers


def cnn() -> keras.Model:
    """Convolution, BatchNorm's statistics, Dropout's seeds."""
    image = keras.Input((8, 8, 1))
    h = layers.Conv2D(4, 3, use_bias=False)(image)
    h = layers.BatchNormalization()(h)
    h = layers.Activation("relu")(h)
    h = layers.Flatten()(h)
    h = layers.Dropout(0.3)(h)
    h = layers.Dense(16, activation="tanh", kernel_regularizer="l2")(h)
    return keras.Model(image, layers.Dense(10)(h))


def sparse() -> keras.Model:
    """An Embedding, whose gradients are rows on TensorFlow; and a frozen layer."""
    image = keras.Input((8, 8, 1))
    h = layers.Flatten()(image)
    h = keras.ops.cast(h * 16, "int32")
    h = layers.Embedding(20, 4)(h)
    frozen = layers.Dense(8)
    frozen.trainable = False
    h = frozen(layers.Flatten()(h))
    return keras.Model(image, layers.Dense(10)(h))


def dense() -> keras.Model:
    """Little to compile."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(16, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


def line() -> keras.Model:
    """Less to compile, where the model is not the subject: one layer, and Dropout's seeds."""
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dropout(0.2), layers.Dense(10)])


class Scale(layers.Layer):
    """What an XLA compiler likes to fuse with the update."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=shape[1:], initializer="ones")
        self.b = self.add_weight(shape=shape[1:], initializer="zeros")

    def call(self, x: Any) -> Any:
        return keras.ops.tanh(x) * self.w + self.b * keras.ops.sin(x)


def fusing() -> keras.Model:
    """Elementwise parameters, batches of one: gradients are products that a compiler contracts into the update."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            Scale(),
            layers.Flatten(),
            layers.Dense(12, activation="gelu", kernel_regularizer="l2"),
            Scale(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )


class GlobalNoise(layers.Layer):
    """Draws from Keras's global seed generator."""

    def call(self, x: Any) -> Any:
        return x + 0.1 * keras.random.normal(keras.ops.shape(x))


def global_noise() -> keras.Model:
    """Random numbers that belong to no layer."""
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), GlobalNoise(), layers.Dense(10)])


def constrained() -> keras.Model:
    """Updates that end with a constraint."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(8, kernel_constraint=keras.constraints.MaxNorm(0.5)),
            layers.Dense(10, bias_constraint="non_neg"),
        ]
    )


class Late(layers.Layer):
    """Writes its own trained weights, from the tenth call on."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=shape[1:], initializer="ones")
        self.calls = 0

    def call(self, x: Any) -> Any:
        self.calls += 1
        if self.calls >= 10:
            self.w.assign(self.w * 0.9)
        return x * self.w


def late() -> keras.Model:
    """A write that the first steps do not show."""
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), Late(), layers.Dense(10)])


def spectral() -> keras.Model:
    """A layer that divides its kernel by the spectral norm in each training step."""
    dense = layers.SpectralNormalization(layers.Dense(12, activation="relu"))
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), dense, layers.Dense(10)])


MODELS = {
    "spectral": spectral,
    "global-noise": global_noise,
    "constrained": constrained,
    "late": late,
    "cnn": cnn,
    "sparse": sparse,
    "dense": dense,
    "line": line,
    "fusing": fusing,
}


o = keras.optimizers


def _decay() -> Any:
    return o.schedules.CosineDecay(1e-2, 40)


# All of keras.optimizers, and everything that an update can be told to do besides.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam-schedule": lambda: o.Adam(_decay()),
    "adam": lambda: o.Adam(1e-2),
    "sgd": lambda: o.SGD(0.05),
    "sgd-nesterov-decay": lambda: o.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam-amsgrad": lambda: o.Adam(1e-2, amsgrad=True),
    "adam-clipnorm": lambda: o.Adam(1e-2, clipnorm=0.1),
    "adam-global-clipnorm": lambda: o.Adam(1e-2, global_clipnorm=0.1),
    "adam-clipvalue": lambda: o.Adam(1e-2, clipvalue=0.01),
    "adam-accumulate": lambda: o.Adam(1e-2, gradient_accumulation_steps=3),
    "adam-ema": lambda: o.Adam(1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4),
    "adam-ema-end": lambda: o.Adam(1e-2, use_ema=True, ema_momentum=0.9),
    "adam-loss-scale": lambda: o.LossScaleOptimizer(o.Adam(1e-2), initial_scale=2.0**120, dynamic_growth_steps=3),
    "adam-scale-factor": lambda: o.Adam(1e-2, loss_scale_factor=8.0),
    "adamw": lambda: o.AdamW(_decay(), weight_decay=0.02),
    "adamax": lambda: o.Adamax(1e-2),
    "nadam": lambda: o.Nadam(1e-2),
    "rmsprop-centered": lambda: o.RMSprop(1e-2, momentum=0.9, centered=True),
    "adagrad": lambda: o.Adagrad(1e-2),
    "adadelta": lambda: o.Adadelta(1.0),
    "adafactor": lambda: o.Adafactor(1e-2),
    "ftrl": lambda: o.Ftrl(1e-2, l1_regularization_strength=1e-4),
    "lion": lambda: o.Lion(1e-3),
    "lamb": lambda: o.Lamb(1e-2),
    "muon": lambda: o.Muon(1e-2),
}


def made(
    optimizer: Any, model: str = "cnn", *, seed: int = 5, policy: str | None = None, executions: int = 1, **options: Any
) -> Any:
    """Return a compiled model, made as in a fresh process; `options` are of `compile`."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(seed)
    keras.config.set_dtype_policy(policy or "float32")
    found = MODELS[model]()
    name, _, rest = str(optimizer).partition("+")
    chosen = OPTIMIZERS[name]() if isinstance(optimizer, str) else optimizer
    if rest == "exclude":
        chosen.exclude_from_weight_decay(var_names=["bias"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found.compile(chosen, loss, metrics=["accuracy"], steps_per_execution=executions, **options)
    return found


def gradients_of(loss_of: Any, variables: list[Any]) -> tuple[Any, list[Any]]:
    """Return a loss and its gradients, on TensorFlow and on PyTorch."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of()
        return loss, list(tape.gradient(loss, variables))
    import torch

    loss = loss_of()
    return loss, list(torch.autograd.grad(loss, [v.value for v in variables], allow_unused=True))


def variable_called(model: Any, what: str) -> Any:
    """Return a variable of each kind: "rate", "momentum", "frozen", or a weight."""
    if what == "rate":
        return model.optimizer.learning_rate
    if what == "momentum":
        return model.optimizer.variables[2]
    if what == "frozen":
        return next(layer for layer in model.layers if layer.variables and not layer.trainable).kernel
    return model.layers[-1].kernel


def bits(*models: Any) -> list[bytes]:
    """Return the values of all variables of models and of their optimizers."""
    variables = [v for model in models for v in [*model.variables, *model.optimizer.variables]]
    return [np.asarray(keras.ops.convert_to_numpy(v)).tobytes() for v in variables]


# Train steps of their own, in the style of keras.io's examples.

ops = keras.ops
LATENT = 6


class GAN(keras.Model):
    """DCGAN: `super().compile()` leaves a default optimizer that trains nothing; two others are built by the first step."""

    clip: float | None = None
    steps_of_discriminator = 1

    def __init__(self) -> None:
        super().__init__()
        dense, batch_norm, dropout = layers.Dense, layers.BatchNormalization(), layers.Dropout(0.2)
        self.generator = keras.Sequential([keras.Input((LATENT,)), dense(12), batch_norm, layers.ReLU(), dense(64)])
        self.discriminator = keras.Sequential([keras.Input((64,)), dense(12), layers.LeakyReLU(), dropout, dense(1)])
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


def made_own(style: str, x: Any) -> Any:
    """Return a compiled model with a train step of its own."""
    keras.utils.set_random_seed(5)
    if style == "named":
        model: Any = Named()
        model(x[:8])
        model.compile(keras.optimizers.Adam(0.01))
        model.optimizer.build(model.trainable_variables)
        return model
    model = WGAN() if style == "wgan" else WarmedUp()
    model.compile(keras.optimizers.Adam(0.01, beta_1=0.5), keras.optimizers.RMSprop(0.01))
    return model


class Sampling(layers.Layer):
    """Adds noise by tf.random."""

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self.seed = seed

    def call(self, inputs: Any) -> Any:
        import tensorflow as tf

        return inputs + tf.random.normal(tf.shape(inputs), seed=self.seed)
