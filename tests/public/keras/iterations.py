"""Data whose length nobody knows, with the callback and without."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tranlogs_keras import TranLogsCallback

EPOCHS, BATCHES = 4, 40


def counted(run: str | None) -> int:
    """Train; return the steps that the optimizer has counted."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(4 * BATCHES, 4)).astype("float32")
    signature = (tf.TensorSpec((4,)), tf.TensorSpec((1,)))
    data = tf.data.Dataset.from_generator(lambda: ((row, row[:1]) for row in x), output_signature=signature).batch(4)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss="mse")
    callbacks: list[Any] = [] if run is None else [TranLogsCallback(run, segment_bytes=1 << 20, verbose=False)]
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return int(model.optimizer.iterations)
