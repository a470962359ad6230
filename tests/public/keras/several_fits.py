"""Scripts that fit one model many times, compile between fits or within one, and resume by themselves."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np

from tests.kills.keras import Job

calls = [0]  # of the layer, in Python: a compiled step calls it while it is traced


class Traced(keras.layers.Layer):
    """Counts how often it is traced."""

    def call(self, x: Any) -> Any:
        calls[0] += 1
        return x


class Thaw(keras.callbacks.Callback):
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


def _model(*others: keras.layers.Layer) -> Any:
    keras.utils.set_random_seed(1)
    dropout = keras.layers.Dropout(0.2, name="dropout")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), *others, dropout, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), loss="mse")
    return model


def _data() -> Any:
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    return x, x[:, :1] * 2


def many(job: Job, tells: bool = False) -> None:
    """Fit one batch after another, each by a fit of its own, the last ones with another rate of dropout.

    Args:
        job: this life.
        tells: whether to count and to print which of the last fits have traced the step.
    """
    model, (x, y) = _model(*([Traced()] if tells else [])), _data()
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
    model, (x, y) = _model(), _data()
    for epochs in (first, 1, 1):
        history = model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, callbacks=job.callbacks(recheck=rechecks))
        job.print(*(float(keras.ops.sum(v)) for v in model.trainable_variables))
    job.keep(model=model, history=history)


def compiled_within(job: Job, how: str, log: str = "auto") -> None:
    """Print what is said to a callback that changes the way of training, and train the model after it."""
    model, (x, y) = _model(), _data()
    try:
        model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=job.callbacks(Thaw(how), log=log))
    except Exception as error:
        job.print(f"{type(error).__name__}: {error}")
    model.compile(keras.optimizers.SGD(0.01), loss="mse")
    model.fit(x, y, batch_size=8, verbose=0)
    job.keep(steps=int(model.optimizer.iterations))


def loading(job: Job) -> None:
    """Resume by a model that the script has saved itself."""
    last, (x, y) = job.folder / "last.keras", _data()
    model = keras.models.load_model(last) if last.exists() else _model()
    own = keras.callbacks.ModelCheckpoint(str(last))
    history = model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=job.callbacks(own, by_batch=True))
    values = [keras.ops.convert_to_numpy(v) for v in [*model.variables, *model.optimizer.variables]]
    job.keep(values=values, history=history)  # in order: variables of a loaded model have other paths


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


def shared(job: Job, kind: str) -> None:
    """Fit three times on one and the same data set, which shuffles anew in each pass."""
    model, (x, y) = _model(), _data()
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
        begins = {2: 0, 4: 2, 6: 4}[epochs]
        callbacks = job.callbacks(by_batch=True)
        steps = 4 if kind == "generator" else None
        history = model.fit(data, initial_epoch=begins, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    job.keep(model=model, history=history)
