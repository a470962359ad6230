"""A train_step that reports names of its own, as WGAN, VQ-VAE and DDIM do."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from tests.kills.keras import Job
from tests.public.keras.own_steps import gradients_of


class Dense(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


class Named(Dense):
    """Reports the loss of the last batch as "my_loss", on TensorFlow and PyTorch."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        variables = self.trainable_variables
        loss, gradients = gradients_of(lambda: ops.mean(ops.square(self(x, training=True) - y)), variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
        return {"my_loss": loss}


class NamedOnJax(Dense):
    """The same, in the form that Keras' guide to custom train steps on JAX has."""

    def loss_and_updates(self, trainable: Any, others: Any, x: Any, y: Any) -> Any:
        found, others = self.stateless_call(trainable, others, x)
        return ops.mean(ops.square(found - y)), others

    def train_step(self, state: Any, data: Any) -> Any:
        import jax

        trainable, others, owned, metrics = state
        (loss, others), gradients = jax.value_and_grad(self.loss_and_updates, has_aux=True)(trainable, others, *data)
        trainable, owned = self.optimizer.stateless_apply(owned, gradients, trainable)
        return {"my_loss": loss}, (trainable, others, owned, metrics)


def named(job: Job) -> None:
    """Train with a callback that needs the reported value."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    model = NamedOnJax() if keras.backend.backend() == "jax" else Named()
    model(x[:8])
    model.compile(keras.optimizers.SGD(0.1))
    if keras.backend.backend() == "jax":
        model.optimizer.build(model.trainable_variables)
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="my_loss", mode="min", patience=1, min_delta=0.1)
    history = model.fit(x, x[:, :1], batch_size=8, epochs=5, verbose=0, callbacks=job.callbacks(plateau, by_batch=True))
    job.keep(model=model, history=history)
