"""Loops without data in the style of nanoGPT: batches at random places of an array; the next one may wait in a variable."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.public.keras.own_loop import Death, arrays, outcome
from tranlogs_keras import LoggedOptimizer

STEPS, BATCH = 12, 8


class Waiting:
    """Batches of an array; the next one lies ready."""

    def __init__(self) -> None:
        self.x, self.y = arrays()
        self.rows = self.draw()

    def draw(self) -> Any:
        return np.random.randint(0, len(self.x), BATCH)

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


def train(run: str | None, die: list[Any] | None, how: str, declares_late: bool = False) -> dict[str, Any]:
    """Train; the batch that waits is tracked, or other things are, or the batch is drawn in the turn that uses it."""
    keras.utils.set_random_seed(4)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(6, activation="tanh"), layers.BatchNormalization(), layers.Dense(3)]
    )
    plain, waiting, death = keras.optimizers.Adam(1e-2), Waiting(), Death(die)
    optimizer: Any = plain
    turns: Any = range(STEPS)
    if run is not None:
        optimizer = LoggedOptimizer(plain, run, model, checkpoint_every=4, segment_bytes=1 << 20)
        optimizer.track(
            **{"tracked": {"waiting": waiting}, "generator": {"draws": np.random.default_rng(1), "best": Best()}}.get(how, {})
        )
        optimizer.recover()
        turns = optimizer.steps(
            STEPS, stateless=how == "tracked" or (how == "stateless" and (die is None or not declares_late))
        )
    for _ in turns:
        if how == "stateless":
            waiting.rows = waiting.draw()
        rows = waiting.rows
        optimizer.apply(gradients_of(model, waiting.x[rows], waiting.y[rows]), list(model.trainable_weights))
        if how != "stateless":
            waiting.rows = waiting.draw()
        death.count("step")
    if run is not None:
        optimizer.close()
    return outcome([model, plain], [], optimizer)


class Drawing:
    """Batches at random places, from a generator of its own or from numpy's global one; each pass has four."""

    def __init__(self, *, draws_of_its_own: bool) -> None:
        self.x, self.y = arrays()
        self.draws: Any = np.random.default_rng(6) if draws_of_its_own else np.random.mtrand._rand

    def __iter__(self) -> Any:
        for _ in range(4):
            rows = (self.draws.random(BATCH) * len(self.x)).astype(int)
            yield self.x[rows], self.y[rows]


def iterate(run: str, die: list[Any] | None, how: str) -> dict[str, Any]:
    """Train on an iterable of the script's own, in epochs."""
    keras.utils.set_random_seed(4)
    model, plain, death = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), keras.optimizers.Adam(1e-2), Death(die)
    optimizer = LoggedOptimizer(plain, run, model, checkpoint_every=4, segment_bytes=1 << 20)
    data = Drawing(draws_of_its_own=how == "draws of its own")
    for epoch in optimizer.epochs(3, data, stateless=how == "stateless"):
        for x, y in epoch:
            optimizer.apply(gradients_of(model, x, y), list(model.trainable_weights))
            death.count("batch")
    optimizer.close()
    return outcome([model, plain], [], optimizer)


def leave(run: str | None, die: list[Any] | None, how: str) -> dict[str, Any]:
    """Leave the loop behind the seventh step, by its own `break` or by an exception."""
    keras.utils.set_random_seed(4)
    model, plain, death = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), keras.optimizers.Adam(1e-2), Death(die)
    waiting, optimizer = Waiting(), None if run is None else LoggedOptimizer(plain, run, model, segment_bytes=1 << 20)
    try:
        for number in range(STEPS) if optimizer is None else optimizer.steps(STEPS, stateless=True):
            rows = waiting.draw()
            (optimizer or plain).apply(gradients_of(model, waiting.x[rows], waiting.y[rows]), list(model.trainable_weights))
            death.count("step")
            if number == 6:
                if how == "break":
                    break
                raise KeyError(how)
    finally:
        if optimizer is not None:
            optimizer.close()
    return outcome([model, plain], [], optimizer)


def begin(run: str) -> str:
    """Return the report of a new run."""
    optimizer = LoggedOptimizer(
        keras.optimizers.Adam(1e-2), run, keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]), checkpoint_every=4
    )
    report = str(optimizer.recover())
    optimizer.close()
    return report
