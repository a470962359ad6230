"""Two inputs by name, of which one is a category, and two outputs with losses and weights of their own."""

from __future__ import annotations

import keras
from keras import layers, ops

from tests.keras.data import digits
from tests.kills.keras import Job


def train(job: Job) -> None:
    keras.utils.set_random_seed(111)
    x, y = digits(90)
    row = (x.sum(axis=(1, 2, 3)) * 4).astype("int32") % 12
    image, category = keras.Input((8, 8, 1), name="image"), keras.Input((1,), name="category", dtype="int32")
    h = layers.Flatten()(layers.SpatialDropout2D(0.2)(layers.SeparableConv2D(6, 3)(image)))
    h = layers.Concatenate()([h, layers.Flatten()(layers.Embedding(12, 3)(category))])
    h = layers.Dropout(0.1)(layers.Dense(12, activation="relu")(h))
    model = keras.Model(
        {"image": image, "category": category},
        {"digit": layers.Dense(10, name="digit")(h), "brightness": layers.Dense(1, name="brightness")(h)},
    )
    model.compile(
        keras.optimizers.Adagrad(0.05),
        loss={"digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "brightness": keras.losses.Huber()},
        loss_weights={"digit": 1.0, "brightness": 0.2},
        metrics={"digit": ["accuracy"], "brightness": ["mae"]},
    )
    data = {"image": x, "category": row[:, None]}
    targets = {"digit": y, "brightness": x.mean(axis=(1, 2))}
    history = model.fit(data, targets, batch_size=16, epochs=3, validation_split=0.1, verbose=2, callbacks=job.callbacks())
    job.say("brightness", ops.sum(model.predict(data, verbose=0)["brightness"]))
    job.keep(model=model, history=history)
