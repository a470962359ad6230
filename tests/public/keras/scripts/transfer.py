"""Transfer learning: train a head on a frozen base, thaw the base, compile again, fine-tune on images that are drawn anew."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.kills.keras import Job
from tests.public.keras.data import digits


class ShowOne(keras.callbacks.Callback):
    """Looks at the prediction for an image that numpy chooses."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x = x

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        chosen = np.random.randint(len(self.x))
        self.model.predict(self.x[chosen : chosen + 1], verbose=0)


def train(job: Job, data: str) -> None:
    keras.utils.set_random_seed(31)
    x, y = digits(96)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96, seed=3).batch(16).prefetch(2)
    base = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(6, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.Flatten(),
        ],
        name="base",
    )
    base.trainable = False
    inputs = keras.Input((8, 8, 1))
    h = layers.RandomFlip("horizontal", seed=2)(inputs)
    h = layers.Rescaling(scale=2.0, offset=-1)(h)
    h = layers.Dropout(0.2)(base(h, training=False))
    model = keras.Model(inputs, layers.Dense(10)(h))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    options: dict[str, Any] = {"validation_data": (x[:16], y[:16]), "verbose": 2}
    show = ShowOne(x)
    given = {"x": rows} if data == "dataset" else {"x": x, "y": y, "batch_size": 16}
    head = model.fit(**given, epochs=2, callbacks=job.callbacks(show), **options)
    job.say("head", *model.evaluate(x, y, verbose=0))

    base.trainable = True
    model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
    chosen = np.random.permutation(len(x))[:80]
    given = given if data == "dataset" else {"x": x[chosen], "y": y[chosen], "batch_size": 16}
    tuned = model.fit(**given, epochs=3, callbacks=job.callbacks(stopping), **options)
    job.say("tuned", *model.evaluate(x, y, verbose=0))
    job.keep(model=model, head=head, tuned=tuned)
