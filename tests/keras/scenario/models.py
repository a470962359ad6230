"""Small models with the layers whose state or updates are special."""

from __future__ import annotations

from typing import Any

import keras
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
