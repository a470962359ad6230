"""Scripts of Keras: one that resumes by itself, and ones that thaw layers within a fit and between two."""

from __future__ import annotations

import csv
from typing import Any

import keras

from tests.kills.keras import Job
from tests.public.keras.data import digits
from tranlogs.base.errors import UsageError

EPOCHS, ROWS, BATCH = 5, 96, 16
THAWED = 2  # the epoch from which on all layers are trained


def resumed(job: Job, style: str = "sequential") -> None:
    """Load what the last epoch has saved, and go on behind the epochs that the table has.

    Args:
        job: this life.
        style: "sequential" or "functional", of a model that is saved whole; "weights" saves and loads weights only.
    """
    keras.utils.set_random_seed(3)
    x, y = digits(ROWS)
    x = x.reshape(-1, 64)
    only_weights, table = style == "weights", job.files / "log.csv"
    saved = job.folder / ("last.weights.h5" if only_weights else "last.keras")
    first = 0
    if saved.exists():
        with table.open() as file:
            first = len(list(csv.DictReader(file)))
    model = keras.models.load_model(saved) if saved.exists() and not only_weights else _built(style)
    if saved.exists() and only_weights:
        model.load_weights(saved)
    own = [
        keras.callbacks.ModelCheckpoint(saved, save_weights_only=only_weights),
        keras.callbacks.CSVLogger(str(table), append=True),
    ]
    callbacks = job.callbacks(*own, by_batch=True)
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, initial_epoch=first, verbose=0, callbacks=callbacks)
    job.keep(values=_values(model), history=history)


def thawed_within(job: Job) -> None:
    """Train the last layers, then all of them at a lower rate, in one fit; print why that is refused."""
    x, y = digits(ROWS)
    model = _frozen()

    class Thaw(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == THAWED:
                _thaw(self.model)
                self.model.make_train_function(force=True)

    try:
        model.fit(x.reshape(-1, 64), y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=job.callbacks(Thaw()))
    except UsageError as error:
        job.print(error)


def thawed_between(job: Job) -> None:
    """Train the last layers, then all of them at a lower rate, in a fit of their own."""
    x, y = digits(ROWS)
    model = _frozen()
    about: dict[str, Any] = {"x": x.reshape(-1, 64), "y": y, "batch_size": BATCH, "verbose": 0}
    first = model.fit(**about, epochs=THAWED, callbacks=job.callbacks(by_batch=True))
    _thaw(model)
    second = model.fit(**about, initial_epoch=THAWED, epochs=EPOCHS, callbacks=job.callbacks(by_batch=True))
    job.keep(model=model, first=first, second=second)


def _built(style: str) -> Any:
    layers = keras.layers
    if style == "functional":
        given = keras.Input((64,))
        model = keras.Model(given, layers.Dense(10)(layers.Dropout(0.2)(layers.Dense(12, activation="relu")(given))))
    else:
        model = keras.Sequential(
            [keras.Input((64,)), layers.Dense(12, activation="relu"), layers.Dropout(0.2), layers.Dense(10)]
        )
    rate = keras.optimizers.schedules.ExponentialDecay(1e-2, decay_steps=ROWS // BATCH, decay_rate=0.8)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _values(model: Any) -> list[Any]:
    """Return values in order: variables of a loaded model have other paths."""
    return [keras.ops.convert_to_numpy(variable) for variable in [*model.variables, *model.optimizer.variables]]


def _frozen() -> Any:
    keras.utils.set_random_seed(13)
    layers = keras.layers
    base = keras.Sequential([keras.Input((64,)), layers.Dense(12, activation="relu"), layers.BatchNormalization()], name="base")
    base.trainable = False
    model = keras.Sequential([keras.Input((64,)), base, layers.Dense(10)])
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def _thaw(model: Any) -> None:
    model.get_layer("base").trainable = True
    model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
