"""Fine-tuning by low-rank adapters: train, quantize, enable_lora, compile again, fit."""

from __future__ import annotations

import keras
from keras import layers

from tests.keras.data import digits
from tests.kills.keras import Job


def train(job: Job) -> None:
    keras.utils.set_random_seed(121)
    x, y = digits(96)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(16, activation="relu", name="hidden"),
            layers.Dropout(0.1),
            layers.Dense(10, name="head"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x = x.reshape(-1, 64)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    first = model.fit(x[:64], y[:64], batch_size=16, epochs=2, verbose=2, callbacks=job.callbacks())
    job.say("trained", *(keras.ops.sum(v) for v in model.trainable_variables))
    job.renew()  # the next fit has a callback of its own
    model.quantize("int8")
    for name in ("hidden", "head"):
        model.get_layer(name).enable_lora(2)
    model.compile(keras.optimizers.AdamW(0.01), loss, metrics=["accuracy"])
    tuned = model.fit(x[32:], y[32:], batch_size=16, epochs=3, verbose=2, callbacks=job.callbacks())
    job.say("tuned", *model.evaluate(x, y, verbose=0))
    job.keep(model=model, first=first, tuned=tuned)
