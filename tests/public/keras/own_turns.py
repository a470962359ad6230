"""Loops without data in the style of nanoGPT: batches at random places of an array; the next one may wait in a variable."""

from __future__ import annotations

import random
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

from tests.kills.keras import Job
from tests.public.keras.own_loop import ROWS, arrays
from tranlogs.base.errors import UsageError
from tranlogs_keras import LoggedOptimizer

STEPS, BATCH = 12, 8


class Waiting:
    """Batches of an array; the next one lies ready."""

    def __init__(self) -> None:
        self.x, self.y = arrays()
        self.rows = self.draw()

    def draw(self) -> Any:
        return np.random.randint(0, len(self.x), BATCH)

    def fetch(self) -> None:
        self.rows = self.draw()

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]


class Best:
    """A score, which tells nothing of the data."""

    def state_dict(self) -> dict[str, Any]:
        return {"score": 1.0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def gradients_of(model: keras.Model, x: Any, y: Any) -> list[Any]:
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = list(model.trainable_weights)
    if keras.backend.backend() == "torch":
        loss_of(y, model(x, training=True)).backward()
        found = [v.value.grad.clone() for v in weights]
        model.zero_grad()
        return found
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    return list(tape.gradient(loss, weights))


def train(job: Job, how: str, declares_late: bool = False) -> None:
    """Train; the batch that waits is tracked, or other things are, or the batch is drawn in the turn that uses it."""
    keras.utils.set_random_seed(4)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(6, activation="tanh"), layers.BatchNormalization(), layers.Dense(3)]
    )
    plain, waiting = keras.optimizers.Adam(1e-2), Waiting()
    optimizer: Any = plain
    turns: Any = range(STEPS)
    if job.run is not None:
        optimizer = job.wrap(plain, model, checkpoint_every=4)
        optimizer.track(
            **{"tracked": {"waiting": waiting}, "generator": {"draws": np.random.default_rng(1), "best": Best()}}.get(how, {})
        )
        optimizer.recover()
        turns = optimizer.steps(
            STEPS, stateless=how == "tracked" or (how == "stateless" and (job.death is None or not declares_late))
        )
    for _ in turns:
        rows = waiting.draw() if how == "stateless" else waiting.rows
        optimizer.apply(gradients_of(model, waiting.x[rows], waiting.y[rows]), list(model.trainable_weights))
        if how != "stateless":
            waiting.fetch()
        job.at("step")
    if job.run is not None:
        optimizer.close()
    job.keep(state=[model, plain], history=[])


def draw_rows(state: Any) -> Any:
    """Return rows for the next turn, with a weight for each of them as a tensor of the backend."""
    rows = state.chance.integers(0, ROWS, BATCH)
    return rows, keras.ops.cast(keras.ops.arange(1, BATCH + 1) / BATCH, "float32") * float(np.random.random())


def remember(job: Job) -> None:
    """Train on rows that wait, drawn by a generator, with a decaying mean of gradients as a tensor and the last losses."""
    keras.utils.set_random_seed(4)
    x, y = arrays()
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(3)])
    plain = keras.optimizers.Adam(1e-2)
    values = {"chance": np.random.default_rng(7), "waiting": None, "mean": keras.ops.zeros((3,)), "best": float("inf")}
    values |= {"last": deque(maxlen=3), "python": random.Random(3)}
    optimizer: Any = plain
    state: Any = SimpleNamespace(**values)
    if job.run is not None:
        optimizer = job.wrap(plain, model, checkpoint_every=4)
        state = optimizer.remember(**values)
        assert optimizer.remember_times(clock=0.0) is state
        assert optimizer.recover().step == 0 or len(state.last) == min(3, optimizer.report.step), "they are there at once"
    if state.waiting is None:
        state.waiting = draw_rows(state)
    printed = []
    for turn in range(STEPS) if job.run is None else optimizer.steps(STEPS, stateless=True):
        rows, weights = state.waiting
        state.waiting = draw_rows(state)
        found = gradients_of(model, x[rows] * keras.ops.convert_to_numpy(weights)[:, None], y[rows])
        state.mean = 0.9 * state.mean + found[-1]
        found[-1] = found[-1] + state.mean * state.python.random()
        optimizer.apply(found, list(model.trainable_weights))
        state.last.append((turn, float(keras.ops.sum(found[-1]))))
        state.best, state.clock = min(state.best, state.last[-1][1]), time.perf_counter()
        job.at("step")
    printed = [state.best, list(state.last), keras.ops.convert_to_numpy(state.mean).tolist(), str(state.mean.dtype)]
    if job.run is not None:
        optimizer.close()
    job.keep(state=[model, plain], history=printed)


def count(job: Job, how: str) -> None:
    """Train at a rate that depends on the number of the batch, and sum losses up in an attribute that each epoch sets to 0."""
    keras.utils.set_random_seed(4)
    data = arrays()
    model, plain = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), keras.optimizers.SGD(1e-2)
    optimizer = job.wrap(plain, model, checkpoint_every=4)
    state = optimizer.remember(total=0.0, history=[])
    optimizer.recover()

    def train_on(number: int, batch: Any) -> None:
        plain.learning_rate = 0.01 * (1 + number)
        found = gradients_of(model, *batch)
        optimizer.apply(found, list(model.trainable_weights))
        state.total += float(keras.ops.sum(found[-1] * found[-1]))
        job.at("batch")

    if how == "run":
        for number, batch in optimizer.batches(data, until=3 * ROWS // BATCH, batch_size=BATCH, enumerate=True):
            train_on(number, batch)
    for epoch in optimizer.epochs(3, data if how == "epoch" else None, batch_size=BATCH) if how != "run" else ():
        state.total = 0.0
        batches = epoch.enumerate() if how == "epoch" else optimizer.batches(data, batch_size=BATCH, enumerate=True)
        for number, batch in batches:
            train_on(number, batch)
        state.history.append(state.total)
    optimizer.close()
    job.keep(state=[model, plain], history=[state.total, *state.history])


def refuse(run: str) -> list[str]:
    """Return what is said of values that cannot be remembered or tracked."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    optimizer = LoggedOptimizer(keras.optimizers.SGD(1e-2), run, model, segment_bytes=1 << 20)
    itself: dict[str, Any] = {"a": []}
    itself["a"].append(itself)
    best = Best()
    best.state_dict = lambda: itself  # type: ignore[method-assign]
    state = optimizer.remember(x=0)
    attempts = [
        lambda: optimizer.remember(replay=[1, {"fn": lambda: 1}]),
        lambda: setattr(state, "x", itself),
        lambda: setattr(state, "x", [np.empty(1 << 24)]),
        lambda: optimizer.remember(layer=model.layers[0]),
        lambda: optimizer.remember(seeds=(keras.random.SeedGenerator(1),)),
        lambda: optimizer.track(best=best),
        lambda: (optimizer.recover(), optimizer.remember(late=1)),
    ]
    found = []
    for attempt in attempts:
        try:
            attempt()
        except UsageError as error:
            found.append(str(error))
    optimizer.close()
    return found


class Drawing:
    """Batches at random places, from a generator of its own or from numpy's global one; each pass has four."""

    def __init__(self, *, draws_of_its_own: bool) -> None:
        self.x, self.y = arrays()
        self.draws: Any = np.random.default_rng(6) if draws_of_its_own else np.random.mtrand._rand

    def __iter__(self) -> Any:
        for _ in range(4):
            rows = (self.draws.random(BATCH) * len(self.x)).astype(int)
            yield self.x[rows], self.y[rows]


def iterate(job: Job, how: str) -> None:
    """Train on an iterable of the script's own, in epochs."""
    keras.utils.set_random_seed(4)
    model, plain = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), keras.optimizers.Adam(1e-2)
    optimizer = job.wrap(plain, model, checkpoint_every=4)
    data = Drawing(draws_of_its_own=how == "draws of its own")
    for epoch in optimizer.epochs(3, data, stateless=how == "stateless"):
        for x, y in epoch:
            optimizer.apply(gradients_of(model, x, y), list(model.trainable_weights))
            job.at("batch")
    optimizer.close()
    job.keep(state=[model, plain], history=[])


def leave(job: Job, how: str) -> None:
    """Leave the loop behind the seventh step, by its own `break` or by an exception."""
    keras.utils.set_random_seed(4)
    model, plain = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), keras.optimizers.Adam(1e-2)
    waiting, optimizer = Waiting(), None if job.run is None else job.wrap(plain, model)
    try:
        for number in range(STEPS) if optimizer is None else optimizer.steps(STEPS, stateless=True):
            rows = waiting.draw()
            (optimizer or plain).apply(gradients_of(model, waiting.x[rows], waiting.y[rows]), list(model.trainable_weights))
            job.at("step")
            if number == 6:
                if how == "break":
                    break
                raise KeyError(how)
    finally:
        if optimizer is not None:
            optimizer.close()
    job.keep(state=[model, plain], history=[])


def begin(run: str) -> str:
    """Return the report of a new run."""
    optimizer = LoggedOptimizer(
        keras.optimizers.Adam(1e-2), run, keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), checkpoint_every=4
    )
    report = str(optimizer.recover())
    optimizer.close()
    return report


def warm_up(job: Job, steps: int) -> None:
    """Take steps outside of all loops, then some in a loop."""
    keras.utils.set_random_seed(4)
    model, plain = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), keras.optimizers.SGD(1e-2)
    waiting = Waiting()
    optimizer: Any = plain if job.run is None else job.wrap(plain, model)
    if job.run is not None:
        optimizer.recover()

    def step() -> None:
        rows = waiting.draw()
        optimizer.apply(gradients_of(model, waiting.x[rows], waiting.y[rows]), list(model.trainable_weights))
        job.at("step")

    while int(plain.iterations) < steps:
        step()
    for _ in range(STEPS) if job.run is None else optimizer.steps(STEPS, stateless=True):
        step()
    if job.run is not None:
        optimizer.close()
    job.keep(state=[model, plain], history=[])
