"""Layers with seeds, counters and losses of their own, a metric, a regularizer and a schedule of its own; data by name."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from tests.keras.data import digits
from tests.kills.keras import Job


class NoisyDense(layers.Layer):
    """Adds noise to its kernel while it trains, counts its calls, and keeps a running mean."""

    def __init__(self, units: int, **options: Any) -> None:
        super().__init__(**options)
        self.units = units
        self.seeds = keras.random.SeedGenerator(5)

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform", name="kernel")
        self.calls = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False, name="calls")
        self.mean = self.add_weight(shape=(self.units,), initializer="zeros", trainable=False, name="mean")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return ops.matmul(inputs, self.kernel) - self.mean
        outputs = ops.matmul(inputs, self.kernel + 0.05 * keras.random.normal(self.kernel.shape, seed=self.seeds))
        self.calls.assign_add(1)
        self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(outputs, axis=0))
        self.add_loss(1e-3 * ops.mean(ops.square(outputs)))
        return outputs - self.mean


class StochasticDepth(layers.Layer):
    """Leaves a residual out at random, by Keras' global seed."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        return inputs * ops.cast(keras.random.uniform((ops.shape(inputs)[0], 1)) < 0.8, inputs.dtype)


class Confidence(keras.metrics.Metric):
    """The mean of the largest logit."""

    def __init__(self, name: str = "confidence") -> None:
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(ops.sum(ops.max(y_pred, axis=-1)))
        self.count.assign_add(ops.cast(ops.shape(y_pred)[0], "float32"))

    def result(self) -> Any:
        return self.total / ops.maximum(self.count, 1.0)


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, peak: float, steps: int) -> None:
        self.peak, self.steps = peak, steps

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32") + 1.0
        return self.peak * ops.minimum(step / self.steps, ops.rsqrt(step / self.steps))

    def get_config(self) -> dict[str, Any]:
        return {"peak": self.peak, "steps": self.steps}


def train(job: Job) -> None:
    keras.utils.set_random_seed(101)
    x, y = digits(88)
    inputs, images = keras.Input((8, 8, 1), name="image"), {"image": x}
    h = layers.GaussianNoise(0.1, seed=8)(layers.Flatten()(inputs))
    h = layers.Activation("relu")(NoisyDense(12)(h))
    h = layers.Add()([h, StochasticDepth()(layers.Dense(12, kernel_regularizer="l2")(h))])
    model = keras.Model({"image": inputs}, layers.Dense(10, kernel_constraint=keras.constraints.MaxNorm(1.0))(h))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Nadam(Warmup(0.01, 6)), loss, metrics=[Confidence()])
    validation = {"image": x[:16]}, y[:16]
    history = model.fit(images, y, batch_size=16, epochs=3, validation_data=validation, verbose=2, callbacks=job.callbacks())
    job.say("outputs", *ops.convert_to_numpy(model({"image": x[:1]}))[0])
    job.keep(model=model, history=history)
