"""A stateful LSTM and GRU with dropout, whose states a callback resets."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.public.keras.killed import Kill, outcome
from tranlogs_keras import TranLogsCallback

BATCH = 8


class Reset(keras.callbacks.Callback):
    """Resets the states of the recurrent layers where an epoch begins."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for layer in self.model.layers:
            if hasattr(layer, "reset_states"):
                layer.reset_states()


def train(run: str, die: list[Any] | None, resets: bool) -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(6 * BATCH, 5, 3)).astype("float32")
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(BATCH, 5, 3)),
            layers.LSTM(6, stateful=True, dropout=0.2, recurrent_dropout=0.2, return_sequences=True),
            layers.GRU(5, stateful=True, dropout=0.1, recurrent_dropout=0.1),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), loss="mse")
    callback = TranLogsCallback(run, segment_bytes=1 << 20, verbose=False)
    others = [Reset()] if resets else []
    history = model.fit(
        x, x[:, 0, :1], batch_size=BATCH, epochs=4, verbose=0, shuffle=False, callbacks=[callback, Kill(die), *others]
    )
    return outcome(model, callback, history)
