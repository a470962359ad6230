"""Scripts with a fit, or several, that are killed and started again (`tests.kills`): each makes everything anew."""

from __future__ import annotations

import copy
import csv
import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

import tranlogs
import tranlogs.base.failpoints
from tests.keras.callbacks import Sharing, attributes, losses, others
from tests.keras.data import BATCH, EPOCHS, digits, given
from tests.keras.models import MODELS, made
from tests.kills.keras import Job
from tests.support.rungs import shorten_trials
from tranlogs.base.errors import UsageError

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fit(
    job: Job,
    *,
    data: str = "arrays",
    model: str = "dense",
    optimizer: str = "adam",
    epochs: int = EPOCHS,
    validation: bool = False,
    beside: Any = (),
    by_batch: bool = False,
    fails: str = "",
    seed: int = 11,
    compiled: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    cost: float | None = None,
) -> None:
    """One fit.

    Args:
        job: this life.
        data: see `tests.keras.data`.
        model: see `tests.keras.models`, as for `optimizer`.
        optimizer: its name.
        epochs: of the fit.
        validation: whether there is one after each epoch.
        beside: names of other callbacks.
        by_batch: whether a callback looks at each batch in every life.
        fails: rules of failing calls.
        seed: of all random numbers.
        compiled: how the model is compiled.
        options: of the TranLogsCallback.
        cost: what each trial of a few batches is to find that a log of tensors costs; None if nothing is tried.
    """
    if cost is not None:
        shorten_trials(cost)
    if fails:
        tranlogs.base.failpoints._rules = tranlogs.base.failpoints._parse(fails)
    found = made(optimizer, model, seed=seed, **(compiled or {}))
    settings: dict[str, Any] = {"checkpoint_every": 7, "durability": "process"} | (options or {})
    if isinstance(settings.get("monitor"), list):
        settings["monitor"] = tranlogs.Monitor(*settings["monitor"])
    own, arguments = others(beside), given(data)
    if validation:
        x, y = digits(20)
        arguments["validation_data"] = (x, y)
    callbacks = job.callbacks(*own, by_batch=by_batch, **settings)
    if job.run is not None:
        with (job.folder / "ids").open("a") as file:
            file.write(f"{callbacks[0].run_id}\n")
    history = found.fit(**arguments, epochs=epochs, verbose=0, callbacks=callbacks)
    job.keep(model=found, history=history, beside=[attributes(one) for one in own], losses=losses)


def thawed(job: Job, fresh: bool = True, rate: float = 0.01) -> None:
    """As in the guide to transfer learning: train the head, thaw the base, compile anew, fine-tune.

    Args:
        job: this life.
        fresh: whether the second fit has a TranLogsCallback of its own.
        rate: of the first fit.
    """
    keras.utils.set_random_seed(5)
    x, y = digits(96)
    arguments: dict[str, Any] = {"x": x.reshape(-1, 64), "y": y, "batch_size": 16, "verbose": 0}
    layers = keras.layers
    base = keras.Sequential([keras.Input((64,)), layers.Dense(12, activation="tanh"), layers.BatchNormalization()], name="base")
    base.trainable = False
    model = keras.Sequential([keras.Input((64,)), base, layers.Dropout(0.2), layers.Dense(10)])
    model.compile(keras.optimizers.Adam(rate), LOSS, metrics=["accuracy"])
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=9.0)
    first = model.fit(**arguments, epochs=1, callbacks=job.callbacks(plateau, by_batch=True, checkpoint_every=7))
    job.print(*(float(keras.ops.sum(v)) for v in model.variables))  # what stands between fits works with trained weights
    base.trainable = True
    model.compile(keras.optimizers.SGD(1e-3), LOSS, metrics=["accuracy"])
    if fresh:
        job.renew()
    second = model.fit(**arguments, epochs=2, callbacks=job.callbacks(by_batch=True, checkpoint_every=7))
    job.keep(model=model, first=first, second=second)


def shared_callbacks(job: Job) -> None:
    """Three fits of one epoch that share callbacks; the second one diverges, and lacks one of them."""
    model, sharing = made("adam", "line"), Sharing()
    file = str(job.folder / "best.weights.h5")
    best = keras.callbacks.ModelCheckpoint(file, "loss", save_best_only=True, save_weights_only=True)
    between = []
    for own in ([sharing], others(["counting"]), [sharing]):
        callbacks = job.callbacks(best, *own, by_batch=True, checkpoint_every="epoch")
        model.fit(**given("arrays"), epochs=1, verbose=0, callbacks=callbacks)
        between.append([best.best, copy.deepcopy(attributes(sharing))])
        job.at("between")
        model.compile(keras.optimizers.SGD(1e3), LOSS, metrics=["accuracy"])
    values = [keras.ops.convert_to_numpy(v) for v in model.variables]
    model.load_weights(file)
    job.keep(values=values, between=between, best=[keras.ops.convert_to_numpy(v) for v in model.variables])


def mirrored(job: Job) -> None:
    """Two replicas on two logical CPUs."""
    import tensorflow as tf

    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    keras.utils.set_random_seed(3)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = MODELS["line"]()
        model.compile("adam", LOSS, metrics=["accuracy"])
    history = model.fit(**given("arrays"), epochs=2, verbose=0, callbacks=job.callbacks(by_batch=True, checkpoint_every=7))
    values = [v.value for v in [*model.variables, *model.optimizer.variables]]
    parts = [part.numpy() for value in values for part in getattr(value, "values", [value])]  # one a replica
    job.keep(parts=parts, history=history)


# Small fits.

calls = [0]  # of the layer, in Python: a compiled step calls it while it is traced


class Traced(keras.layers.Layer):
    """Counts how often it is traced."""

    def call(self, x: Any) -> Any:
        calls[0] += 1
        return x


class Change(keras.callbacks.Callback):
    """Changes the way of training within the fit."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def _change(self) -> None:
        optimizer = keras.optimizers.SGD(0.01)
        if self._how == "function":
            self.model.make_train_function(force=True)
        elif self._how == "optimizer":
            self.model.optimizer = optimizer
        elif self._how == "trainable":
            self.model.layers[0].trainable = False
        else:
            self.model.compile(optimizer, loss="mse")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1 and self._how != "batch":
            self._change()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._how == "batch":
            self._change()


def _model(*middle: keras.layers.Layer, optimizer: Any = None, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    dropout = keras.layers.Dropout(0.2, name="dropout")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), *middle, dropout, keras.layers.Dense(1)])
    model.compile(optimizer or keras.optimizers.Adam(0.02), loss="mse", **options)
    return model


def _rows(count: int = 32) -> Any:
    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return x, x[:, :1] * 2


def many(job: Job, tells: bool = False) -> None:
    """Fit one batch after another, each by a fit of its own, the last ones with another rate of dropout.

    Args:
        job: this life.
        tells: whether to count and to print which of the last fits have traced the step.
    """
    model, (x, y) = _model(*([Traced()] if tells else [])), _rows()
    traced = list[int]()
    for i in range(6):
        before = calls[0]
        if i == 4:
            model.get_layer("dropout").rate = 0.5
        at = slice(4 * i, 4 * i + 4)
        history = model.fit(x[at], y[at], batch_size=2, verbose=0, callbacks=job.callbacks(by_batch=True))
        if tells:
            traced.append(calls[0] - before)
    if tells:
        job.print(*map(bool, traced[2:]))
    job.keep(model=model, history=history)


def between(job: Job, rechecks: bool, first: int = 1) -> None:
    """Print the weights behind each of three fits, of which the first one has the given number of epochs."""
    model, (x, y) = _model(), _rows()
    for epochs in (first, 1, 1):
        history = model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, callbacks=job.callbacks(recheck=rechecks))
        job.print(*(float(keras.ops.sum(v)) for v in model.trainable_variables))
    job.keep(model=model, history=history)


def compiled_within(job: Job, how: str, log: str = "auto") -> None:
    """Print what is said to a callback that changes the way of training, and train the model after it."""
    model, (x, y) = _model(), _rows()
    try:
        model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=job.callbacks(Change(how), log=log))
    except UsageError as error:
        job.print(error)
    model.compile(keras.optimizers.SGD(0.01), loss="mse")
    model.fit(x, y, batch_size=8, verbose=0)
    job.keep(steps=int(model.optimizer.iterations))


class Shuffling(keras.utils.PyDataset):
    """Data set that shuffles itself at the end of an epoch, by a generator of its own."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y, self.order, self.random = x, y, np.arange(len(x)), np.random.default_rng(3)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        at = self.order[8 * index : 8 * index + 8]
        return self.x[at], self.y[at]

    def on_epoch_end(self) -> None:
        self.random.shuffle(self.order)


def shared_data(job: Job, kind: str) -> None:
    """Fit three times on one and the same data set, which shuffles anew in each pass."""
    model, (x, y) = _model(), _rows()
    data: Any = Shuffling(x, y)
    if kind == "tf.data":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(32, seed=3).batch(8)
    elif kind == "DataLoader":
        import torch

        tensors = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        data = torch.utils.data.DataLoader(tensors, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
    elif kind == "generator":
        data = ((x[at : at + 8], y[at : at + 8]) for at in itertools.cycle(range(25)))
    for epochs in (2, 4, 6):
        callbacks, steps = job.callbacks(by_batch=True), 4 if kind == "generator" else None
        history = model.fit(
            data, initial_epoch=epochs - 2, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=callbacks
        )
    job.keep(model=model, history=history)


def resumed_by_itself(job: Job, style: str = "sequential") -> None:
    """Load what the last epoch has saved, and go on behind the epochs that the table has.

    Args:
        job: this life.
        style: "sequential" or "functional", of a model that is saved whole; "weights" saves and loads weights only.
    """
    keras.utils.set_random_seed(3)
    x, y = digits(96)
    x = x.reshape(-1, 64)
    only_weights, table, layers = style == "weights", job.files / "log.csv", keras.layers
    saved = job.folder / ("last.weights.h5" if only_weights else "last.keras")
    first = 0
    if saved.exists():
        with table.open() as file:
            first = len(list(csv.DictReader(file)))
    if saved.exists() and not only_weights:
        model = keras.models.load_model(saved)
    else:
        if style == "functional":
            rows = keras.Input((64,))
            model = keras.Model(rows, layers.Dense(10)(layers.Dropout(0.2)(layers.Dense(12, activation="relu")(rows))))
        else:
            model = keras.Sequential(
                [keras.Input((64,)), layers.Dense(12, activation="relu"), layers.Dropout(0.2), layers.Dense(10)]
            )
        rate = keras.optimizers.schedules.ExponentialDecay(1e-2, decay_steps=6, decay_rate=0.8)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), LOSS)
    if saved.exists() and only_weights:
        model.load_weights(saved)
    own = [
        keras.callbacks.ModelCheckpoint(saved, save_weights_only=only_weights),
        keras.callbacks.CSVLogger(str(table), append=True),
    ]
    callbacks = job.callbacks(*own, by_batch=True)
    history = model.fit(x, y, batch_size=16, epochs=5, initial_epoch=first, verbose=0, callbacks=callbacks)
    values = [keras.ops.convert_to_numpy(v) for v in [*model.variables, *model.optimizer.variables]]
    job.keep(values=values, history=history)  # in order: variables of a loaded model have other paths


def averaged(job: Job, keeps: bool) -> None:
    """Average the weights into another model, which is beside the fit; keep its variables as attributes of the callback."""
    x, y = _rows()
    keras.utils.set_random_seed(1)
    model, average = (keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]) for _ in range(2))
    model.compile(keras.optimizers.SGD(0.1), "mse")

    class Average(keras.callbacks.Callback):
        """Averages the weights into the other model."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            for mean, value in zip(average.variables, model.trainable_variables, strict=True):
                mean.assign(0.9 * mean + 0.1 * value)

    found = Average()
    for number, variable in enumerate(average.variables if keeps else ()):
        setattr(found, f"kept_{number}", variable)
    model.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=job.callbacks(found, by_batch=True))
    job.keep(model=model, average=average.get_weights())


def recurrent(job: Job, resets: bool, looks: bool = False, deep: bool = True, jit: Any = "auto", epochs: int = 3) -> None:
    """A stateful LSTM and GRU with dropout, whose states a callback resets, or writes by calling the model."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    x = np.random.default_rng(0).normal(size=(6 * BATCH, 5, 3)).astype("float32")
    lstm = layers.LSTM(6, stateful=True, dropout=0.2, recurrent_dropout=0.2, return_sequences=True)
    first = [lstm] if deep else []
    second = layers.GRU(5, stateful=True, dropout=0.1, recurrent_dropout=0.1)
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, 5, 3)), *first, second, layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss="mse", jit_compile=jit)

    class States(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            for layer in [*first, second] if resets else ():
                layer.reset_states()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if looks:
                model(x[:BATCH])

    own = [States()] if resets or looks else []
    about: dict[str, Any] = {"batch_size": BATCH, "epochs": epochs, "verbose": 0, "shuffle": False}
    history = model.fit(x, x[:, 0, :1], callbacks=job.callbacks(*own, by_batch=True), **about)
    states = [np.asarray(state).tolist() for layer in [*first, second] for state in keras.tree.flatten(layer.states)]
    job.keep(model=model, history=history, states=states)


# Data that are drawn.


def of_unknown_length(job: Job, batches: int, executions: int = 1, log: str = "auto", shrinks: bool = False) -> None:
    """Data whose length nobody knows: each pass ends with an attempt to take a step that finds no batch.

    Another callback sets the learning rate at the end of each epoch.
    """
    import tensorflow as tf

    x, y = _rows(batches * 4)
    spec = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
    rows = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec)
    own = [*others(["shrink"] if shrinks else []), *others(["schedule"])]
    model = _model(steps_per_execution=executions)
    callbacks = job.callbacks(*own, by_batch=True, log=log, checkpoint_every=1000)
    history = model.fit(rows.batch(4, drop_remainder=True), epochs=3, verbose=0, callbacks=callbacks)
    job.print(int(model.optimizer.iterations))
    job.keep(model=model, history=history)


def _drawn(rng: Any, x: Any) -> Any:
    rows = rng.integers(0, len(x), BATCH)
    return x[rows], x[rows, :1] * 2


def _by_argument(rng: Any, x: Any) -> Iterator[Any]:
    while True:
        yield _drawn(rng, x)


def _by_global(x: Any) -> Iterator[Any]:
    while True:
        rows = np.random.randint(0, len(x), BATCH)
        yield x[rows], x[rows, :1] * 2


def _in_order(x: Any, y: Any, more: float) -> Iterator[Any]:
    """Yield batches in order, each time with larger labels, however many a thread has drawn ahead."""
    for number in itertools.count():
        rows = np.arange(number * BATCH, (number + 1) * BATCH) % len(x)
        yield x[rows], y[rows] * np.float32(1 + number * more)


def _generators(kind: str, x: Any) -> tuple[Any, Any]:
    """Return generators of training and of validation data that draw random numbers."""
    rng = np.random.default_rng(3)
    others = {"own": _by_argument(np.random.default_rng(4), x), "shared": _by_argument(rng, x), "global": _by_global(x)}
    return _by_argument(rng, x), others[kind]


def validated(job: Job, kind: str) -> None:
    """Train, and lower the learning rate by the loss of the validation data.

    Args:
        job: this life.
        kind: "own", "shared", "global": whose random numbers training and validation draw; "generator": a validation that goes
            on reading; "some of the arrays".
    """
    model, plateau = _model(optimizer=keras.optimizers.SGD(0.02)), keras.callbacks.ReduceLROnPlateau(patience=1)
    x, y = _rows(6 * BATCH)
    of_arrays: dict[str, dict[str, Any]] = {
        "generator": {"validation_data": _in_order(x, y, 1 / 8), "validation_steps": 4},
        "some of the arrays": {"validation_data": (x, y), "validation_steps": 4},
    }
    if kind in of_arrays:
        about = {"x": x, "y": y, "batch_size": BATCH, "epochs": 6} | of_arrays[kind]
    else:
        training, validation = _generators(kind, x)
        about = {"x": training, "validation_data": validation, "steps_per_epoch": 5, "validation_steps": 2, "epochs": 4}
    history = model.fit(**about, verbose=0, callbacks=job.callbacks(plateau, by_batch=True))
    job.keep(model=model, history=history)
