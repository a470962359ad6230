"""A stateful LSTM and GRU with dropout, whose states a callback resets."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.kills.keras import Job

BATCH = 8


class Reset(keras.callbacks.Callback):
    """Resets the states of the recurrent layers where an epoch begins."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for layer in self.model.layers:
            if hasattr(layer, "reset_states"):
                layer.reset_states()


class Look(keras.callbacks.Callback):
    """Calls the model where an epoch ends. That writes the states of its recurrent layers, on JAX, too."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self._x = x

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model(self._x)


def train(
    job: Job,
    resets: bool,
    looks: bool = False,
    deep: bool = True,
    jit: Any = "auto",
    epochs: int = 3,
) -> None:
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(6 * BATCH, 5, 3)).astype("float32")
    layers = keras.layers
    lstm = layers.LSTM(6, stateful=True, dropout=0.2, recurrent_dropout=0.2, return_sequences=True)
    first = [lstm] if deep else []
    second = layers.GRU(5, stateful=True, dropout=0.1, recurrent_dropout=0.1)
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, 5, 3)), *first, second, layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss="mse", jit_compile=jit)
    others = [*([Reset()] if resets else []), *([Look(x[:BATCH])] if looks else [])]
    callbacks = job.callbacks(*others, by_batch=True)
    history = model.fit(x, x[:, 0, :1], batch_size=BATCH, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks)
    states = [np.asarray(state).tolist() for layer in [*first, second] for state in keras.tree.flatten(layer.states)]
    job.keep(model=model, history=history, states=states)
