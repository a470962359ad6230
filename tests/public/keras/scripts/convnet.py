"""A small convnet with dropout and a share of the data for validation."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from tests.public.keras.script import Script, digits, say


def train(folder: str, die: list[Any] | None) -> dict[str, Any]:
    script = Script(folder, die)
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
    history = model.fit(x, y, batch_size=16, epochs=3, validation_split=0.1, verbose=2, callbacks=script.callbacks())
    x, y = digits(32, first=96)
    say("test", *model.evaluate(x, keras.utils.to_categorical(y, 10), verbose=0))
    return script.outcome(model, history)
