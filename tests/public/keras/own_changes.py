"""A loop of one's own whose script sets things on purpose between `recover()` and the loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

from tests.kills.keras import Job
from tests.public.keras.own_loop import arrays
from tests.public.keras.own_turns import gradients_of

BATCH, TURNS = 16, 14


def _set_rate(it: SimpleNamespace) -> None:
    it.plain.learning_rate = 0.003


def _set_weights(it: SimpleNamespace) -> None:
    it.model.layers[0].bias.assign(np.full(6, 0.5, "float32"))


def _clear_moments(it: SimpleNamespace) -> None:
    for variable in it.plain.variables[2:]:  # behind the counter and the rate
        variable.assign(keras.ops.zeros_like(variable))


def _set_state(it: SimpleNamespace) -> None:
    it.state.scale, it.state.last = 2.0, [7]


def _set_row(it: SimpleNamespace) -> None:
    weights = it.model.layers[0].get_weights()
    weights[0][2] = 0.5
    it.model.layers[0].set_weights(weights)


def _set_the_same(it: SimpleNamespace) -> None:
    it.model.set_weights(it.model.get_weights())
    for variable in it.plain.variables:
        variable.assign(keras.ops.copy(variable.value))
    it.state.scale = float(it.state.scale)


def _look(it: SimpleNamespace) -> None:
    """What is no change: a forward pass that moves statistics and draws, and random numbers."""
    it.model(np.ones((4, 8), "float32"), training=True)
    np.random.random(3)


CHANGES = {"rate": _set_rate, "weights": _set_weights, "moments": _clear_moments, "state": _set_state}
CHANGES |= {"row": _set_row, "same": _set_the_same, "look": _look}
NO_CHANGES = ("look", "same")


def train(job: Job, changes: list[str] | None = None, at: int = -1, resumes: bool = False) -> None:
    """Train; the changes come between `recover()` and the loop if `resumes`, without TranLogs before batch `at`."""
    keras.utils.set_random_seed(4)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(6), layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(3)]
    )
    plain = keras.optimizers.Adam(1e-2)
    values: dict[str, Any] = {"scale": 1.0, "last": []}
    state: Any = SimpleNamespace(**values)
    x, y = arrays()
    optimizer: Any = plain
    turns: Any = enumerate(range(TURNS))
    if job.run is not None:
        optimizer = job.wrap(plain, model, checkpoint_every=4)
        state = optimizer.remember(**values)
        optimizer.recover()
        turns = enumerate(optimizer.steps(TURNS, stateless=True))
    everything = SimpleNamespace(model=model, plain=plain, state=state)
    if resumes:
        for name in changes or ():
            CHANGES[name](everything)
    for place, turn in turns:
        if job.run is None and place == at:
            for name in changes or ():
                if name not in NO_CHANGES:
                    CHANGES[name](everything)
        rows = np.arange(turn, turn + BATCH)
        found = gradients_of(model, x[rows], y[rows])
        optimizer.apply([gradient * state.scale for gradient in found], list(model.trainable_weights))
        state.last.append(turn)
        job.at("batch")
    if job.run is not None:
        optimizer.close()
    job.keep(state=[model, plain], history=[state.scale, state.last])
