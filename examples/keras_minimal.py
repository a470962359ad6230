"""A small network on real data, to kill at any moment (Ctrl-C, kill -9) and start again: it goes on at the batch.

python examples/keras_minimal.py
"""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits

from tranlogs_keras import TranLogsCallback

keras.utils.set_random_seed(0)
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 8, 8, 1) / 16).astype("float32")

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
model.fit(images, labels, epochs=20, batch_size=32, callbacks=[TranLogsCallback("runs/keras-digits")])
