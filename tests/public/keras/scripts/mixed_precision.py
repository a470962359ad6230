"""Mixed precision: float16 computations, float32 variables, a loss scale that the first steps overflow."""

from __future__ import annotations

import keras
from keras import layers

from tests.kills.keras import Job
from tests.public.keras.data import digits


def train(job: Job) -> None:
    keras.utils.set_random_seed(81)
    keras.mixed_precision.set_global_policy("mixed_float16")
    x, y = digits(96)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(10),
            layers.Activation("softmax", dtype="float32"),
        ]
    )
    inner = keras.optimizers.RMSprop(1e-3)
    optimizer = keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=2.0**30, dynamic_growth_steps=4)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=16, epochs=3, validation_split=0.1, verbose=2, callbacks=job.callbacks())
    job.say("scale", optimizer.dynamic_scale)
    job.keep(model=model, history=history)
