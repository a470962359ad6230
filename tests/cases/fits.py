"""Scripts of Keras: one that resumes by itself, and one that thaws layers within a fit."""

from __future__ import annotations

import csv
from typing import Any

import keras

from tests.kills.keras import Job
from tests.public.keras.data import digits

EPOCHS, ROWS, BATCH = 5, 96, 16


def resumed(job: Job) -> None:
    """Load what the last epoch has saved, and go on behind the epochs that the table has."""
    keras.utils.set_random_seed(3)
    x, y = digits(ROWS)
    x = x.reshape(-1, 64)
    saved, table = job.folder / "last.keras", job.files / "log.csv"
    first = 0
    if saved.exists():
        model = keras.models.load_model(saved)
        with table.open() as file:
            first = len(list(csv.DictReader(file)))
    else:
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((64,)), layers.Dense(12, activation="relu"), layers.Dropout(0.2), layers.Dense(10)]
        )
        rate = keras.optimizers.schedules.ExponentialDecay(1e-2, decay_steps=ROWS // BATCH, decay_rate=0.8)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss)
    own = [keras.callbacks.ModelCheckpoint(saved), keras.callbacks.CSVLogger(str(table), append=True)]
    callbacks = job.callbacks(*own, by_batch=True)
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, initial_epoch=first, verbose=0, callbacks=callbacks)
    job.keep(model=model, history=history)


def thawed(job: Job) -> None:
    """Train the last layers, then all of them at a lower rate, in one fit."""
    keras.utils.set_random_seed(13)
    x, y = digits(ROWS)
    layers = keras.layers
    base = keras.Sequential([keras.Input((64,)), layers.Dense(12, activation="relu"), layers.BatchNormalization()], name="base")
    base.trainable = False
    model = keras.Sequential([keras.Input((64,)), base, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss)

    class Thaw(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                base.trainable = True
                self.model.compile(keras.optimizers.Adam(1e-3), loss)
                self.model.make_train_function(force=True)

    callbacks = job.callbacks(Thaw(), by_batch=True)
    history = model.fit(x.reshape(-1, 64), y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    job.keep(model=model, history=history)
