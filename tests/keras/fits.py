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
from tests.keras.models import MODELS, Sampling, made, made_own
from tests.kills.keras import Job
from tests.support.rungs import shorten_trials
from tranlogs.base.errors import UsageError
from tranlogs_keras import TranLogsCallback

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


def own_step(job: Job, style: str) -> None:
    """Train two epochs of six batches by a train step of the model's own."""
    x = digits(96)[0].reshape(-1, 64)
    model = made_own(style, x)
    history = model.fit(x, epochs=2, batch_size=16, shuffle=False, verbose=0, callbacks=job.callbacks(by_batch=True))
    job.keep(model=model, history=history)


def noisy(job: Job, is_seeded: bool = False, eager: bool = False) -> None:
    """An autoencoder that draws its noise by tf.random, as many examples do."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    noise = Sampling(5 if is_seeded else None)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), noise, keras.layers.Dense(4)])
    model.compile(keras.optimizers.Adam(0.01), loss="mse", run_eagerly=eager)
    history = model.fit(x, x, batch_size=8, epochs=3, verbose=0, callbacks=job.callbacks(by_batch=True, log="gradients"))
    job.keep(model=model, history=history)


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


def many(job: Job, tells: bool = False, first: int = 1) -> None:
    """Fit one batch after another, each by a fit of its own, the last ones with another rate of dropout; print the weights.

    Args:
        job: this life.
        tells: whether to print which of the last fits have traced the step, instead.
        first: number of epochs of the first fit.
    """
    model, (x, y) = _model(*([Traced()] if tells else [])), _rows()
    traced = list[int]()
    for i in range(6):
        before = calls[0]
        if i == 4:
            model.get_layer("dropout").rate = 0.5
        at, epochs = slice(4 * i, 4 * i + 4), first if i == 0 else 1
        history = model.fit(x[at], y[at], batch_size=2, epochs=epochs, verbose=0, callbacks=job.callbacks(by_batch=True))
        traced.append(calls[0] - before)
        if not tells:
            job.print(*(float(keras.ops.sum(v)) for v in model.trainable_variables))
    if tells:
        job.print(*map(bool, traced[2:]))
    job.keep(model=model, history=history)


def compiled_within(job: Job) -> None:
    """Print what is said to callbacks that change the way of training, and train each model after that."""
    steps = []
    for how in ("compile", "batch", "function", "optimizer", "trainable"):
        keras.utils.clear_session(free_memory=False)
        model, (x, y) = _model(), _rows()
        log = "weights" if how == "batch" else "auto"
        try:
            callback = TranLogsCallback(f"{job.run}/{how}", segment_bytes=1 << 20, overhead=None, log=log)
            model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[callback, Change(how)])
        except UsageError as error:
            job.print(error)
        model.compile(keras.optimizers.SGD(0.01), loss="mse")
        model.fit(x, y, batch_size=8, verbose=0)
        steps.append(int(model.optimizer.iterations))
    job.keep(steps=steps)


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


def resumed_by_itself(job: Job) -> None:
    """Load what the last epoch has saved, and go on behind the epochs that the table has."""
    keras.utils.set_random_seed(3)
    x, y = digits(96)
    x = x.reshape(-1, 64)
    saved, table, layers, first = job.folder / "last.keras", job.files / "log.csv", keras.layers, 0
    if saved.exists():
        with table.open() as file:
            first = len(list(csv.DictReader(file)))
        model = keras.models.load_model(saved)
    else:
        model = keras.Sequential(
            [keras.Input((64,)), layers.Dense(12, activation="relu"), layers.Dropout(0.2), layers.Dense(10)]
        )
        rate = keras.optimizers.schedules.ExponentialDecay(1e-2, decay_steps=6, decay_rate=0.8)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), LOSS)
    own = [keras.callbacks.ModelCheckpoint(saved), keras.callbacks.CSVLogger(str(table), append=True)]
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


def recurrent(job: Job, resets: bool, jit: Any = "auto") -> None:
    """A stateful GRU with dropout, whose states a callback resets at the beginning of an epoch, or writes at its end."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(6 * BATCH, 5, 3)).astype("float32")
    gru = keras.layers.GRU(5, stateful=True, dropout=0.1, recurrent_dropout=0.1)
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, 5, 3)), gru, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), loss="mse", jit_compile=jit)

    class States(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if resets:
                gru.reset_states()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not resets:
                model(x[:BATCH])

    about: dict[str, Any] = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False}
    history = model.fit(x, x[:, 0, :1], callbacks=job.callbacks(States(), by_batch=True), **about)
    job.keep(model=model, history=history, states=[np.asarray(state).tolist() for state in keras.tree.flatten(gru.states)])


# Data that are drawn.


def of_unknown_length(job: Job, batches: int, executions: int) -> None:
    """Data whose length nobody knows: each pass ends with an attempt to take a step that finds no batch.

    Another callback sets the learning rate at the end of each epoch.
    """
    import tensorflow as tf

    x, y = _rows(batches * 4)
    spec = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
    rows = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec)
    model = _model(steps_per_execution=executions)
    callbacks = job.callbacks(*others(["schedule"]), by_batch=True, checkpoint_every=1000)
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


def _in_order(x: Any, y: Any) -> Iterator[Any]:
    """Yield batches in order, each time with larger labels, however many a thread has drawn ahead."""
    for number in itertools.count():
        rows = np.arange(number * BATCH, (number + 1) * BATCH) % len(x)
        yield x[rows], y[rows] * np.float32(1 + number / 8)


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
        "generator": {"validation_data": _in_order(x, y), "validation_steps": 4},
        "some of the arrays": {"validation_data": (x, y), "validation_steps": 4},
    }
    if kind in of_arrays:
        about = {"x": x, "y": y, "batch_size": BATCH, "epochs": 6} | of_arrays[kind]
    else:
        training, validation = _generators(kind, x)
        about = {"x": training, "validation_data": validation, "steps_per_epoch": 5, "validation_steps": 2, "epochs": 4}
    history = model.fit(**about, verbose=0, callbacks=job.callbacks(plateau, by_batch=True))
    job.keep(model=model, history=history)
