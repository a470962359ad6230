"""Scripts with several fits."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.keras.scenario.data import stored_digits
from tests.public.keras.own_steps import Death
from tranlogs_keras import TranLogsCallback

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def logged(run: str) -> TranLogsCallback:
    return TranLogsCallback(run, durability="process", segment_bytes=1 << 20)


def made(rate: float = 0.01) -> keras.Model:
    base = keras.Sequential([keras.Input((64,)), keras.layers.Dense(12, activation="tanh")], name="base")
    base.trainable = False
    model = keras.Sequential([keras.Input((64,)), base, keras.layers.Dropout(0.2), keras.layers.Dense(10)])
    model.compile(keras.optimizers.Adam(rate), LOSS, metrics=["accuracy"])
    return model


def freeze_and_thaw(run: str, fresh: bool, die: int | None = None, rate: float = 0.01) -> dict[str, Any]:
    """As in the guide to transfer learning: train the head, thaw the base, compile anew, fine-tune."""
    keras.utils.set_random_seed(5)
    x, y = stored_digits()
    arguments = {"x": (x[:96] / 16).astype("float32"), "y": y[:96].astype("int64"), "batch_size": 16, "verbose": 0}
    model, callback = made(rate), logged(run)
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=9.0)
    first = model.fit(**arguments, epochs=1, callbacks=[callback, plateau, Death(die)])
    model.get_layer("base").trainable = True
    model.compile(keras.optimizers.Adam(1e-3), LOSS, metrics=["accuracy"])
    callback = logged(run) if fresh else callback
    second = model.fit(**arguments, epochs=2, callbacks=[callback, Death(die)])
    return {
        "state": [np.asarray(keras.ops.convert_to_numpy(v)).tobytes() for v in [*model.variables, *model.optimizer.variables]],
        "history": [{k: list(map(float, v)) for k, v in h.history.items()} for h in (first, second)],
    }


def another_model(run: str) -> str:
    """A loop over seeds that gives all of them one folder."""
    x, y = stored_digits()
    arguments = {"x": (x[:96] / 16).astype("float32"), "y": y[:96].astype("int64"), "batch_size": 16, "verbose": 0}
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        try:
            made().fit(**arguments, callbacks=[logged(run)])
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""
