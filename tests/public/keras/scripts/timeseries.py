"""A forecast by a stateful LSTM, whose states a callback resets after each epoch, over windows in their order."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from tests.kills.keras import Job

_BATCH, _LENGTH = 8, 6


class ResetStates(keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for layer in self.model.layers:
            if getattr(layer, "stateful", False):
                layer.reset_state()


def train(job: Job) -> None:
    keras.utils.set_random_seed(41)
    time = np.arange(400, dtype="float32")
    series = np.sin(time / 7) + 0.3 * np.sin(time / 3)
    windows = keras.utils.timeseries_dataset_from_array(
        series[:-_LENGTH, None], series[_LENGTH:], sequence_length=_LENGTH, sequence_stride=_LENGTH, batch_size=_BATCH
    )
    windows = windows.take(len(windows) - 1)  # a stateful layer takes whole batches only
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(_BATCH, _LENGTH, 1)),
            layers.LSTM(6, stateful=True, dropout=0.1),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.RMSprop(0.01), loss="mae", metrics=["mse"])
    history = model.fit(windows, epochs=3, verbose=2, callbacks=job.callbacks(ResetStates()))
    job.say("last", *model.evaluate(windows, verbose=0))
    states = {
        f"{layer.name} {i}": keras.ops.convert_to_numpy(state).tobytes()
        for layer in model.layers
        for i, state in enumerate(getattr(layer, "states", None) or [])
    }
    job.keep(model=model, history=history, states=states)
