"""Keras, with a metric that is averaged over an epoch."""

import keras
import numpy as np

from tranlogs_keras import TranLogsCallback

keras.utils.set_random_seed(0)
x = np.random.default_rng(1).normal(size=(96, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
model.fit(x, x.sum(1), epochs=50, batch_size=16, verbose=2, callbacks=[TranLogsCallback("runs/keras")])
