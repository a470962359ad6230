"""Models and optimizers whose updates gradients alone do not tell."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from tests.keras.scenario.data import given
from tests.keras.scenario.fits import cut_and_whole, logged, made


def unused_optimizer(folder: str) -> str:
    """A further optimizer, which trains nothing."""
    model = _compiled_two_updates()
    model.third_optimizer = keras.optimizers.SGD(0.1)
    try:
        model.fit(**given("arrays"), verbose=0, callbacks=[logged(folder)])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class TwoUpdates(keras.Model):
    """Two optimizers, and a clamp after them: nothing that gradients of one update tell."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(16, activation="tanh"), layers.Dense(10)
        self.flat = layers.Flatten()

    def call(self, x: Any) -> Any:
        return self.second(self.first(self.flat(x)))

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.other_optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    def train_step(self, data: Any) -> Any:
        x, y = data
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
        else:
            self.zero_grad()
            loss = self.compute_loss(x, y, self(x, training=True))
            loss.backward()
            gradients = [v.value.grad for v in self.trainable_variables]
        variables = self.trainable_variables
        self.optimizer.apply(gradients[:2], variables[:2])
        self.other_optimizer.apply(gradients[2:], variables[2:])
        self.second.kernel.assign(keras.ops.clip(self.second.kernel, -0.3, 0.3))
        return {"loss": loss}


def _compiled_two_updates() -> Any:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    model = TwoUpdates()
    model(np.zeros((1, 8, 8, 1), "float32"))
    model.compile(optimizer="adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables[:2])
    model.other_optimizer.build(model.trainable_variables[2:])
    return model


def own_train_step(folder: str) -> dict[str, Any]:
    """A model with a train_step of its own."""
    found = cut_and_whole(_compiled_two_updates, folder)
    try:
        _compiled_two_updates().fit(**given("arrays"), verbose=0, callbacks=[logged(f"{folder}/refused", log="gradients")])
        found["refused"] = ""
    except Exception as error:
        found["refused"] = str(error)
    return found


class Noisy(keras.optimizers.SGD):
    """Its update draws random numbers, of which gradients tell nothing."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        noise = np.random.standard_normal(tuple(variable.shape)).astype("float32")
        super().update_step(gradient + keras.ops.convert_to_tensor(noise) * 0.01, variable, learning_rate)


def noisy_optimizer(folder: str) -> dict[str, Any]:
    """An optimizer whose steps cannot be redone from gradients."""

    def make() -> Any:
        model = made("sgd")
        model.compile(Noisy(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return model

    return cut_and_whole(make, folder)
