"""A small convnet with dropout and a share of the data for validation."""

from __future__ import annotations

import keras
from keras import layers

from tests.kills.keras import Job
from tests.public.keras.data import digits


def train(job: Job) -> None:
    keras.utils.set_random_seed(812)
    x, y = digits(96)
    y = keras.utils.to_categorical(y, 10)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, kernel_size=3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(8, kernel_size=2, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=16, epochs=3, validation_split=0.1, verbose=2, callbacks=job.callbacks())
    x, y = digits(32, first=96)
    job.say("test", *model.evaluate(x, keras.utils.to_categorical(y, 10), verbose=0))
    job.keep(model=model, history=history)
