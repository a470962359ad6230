"""Training loops of one's own (`tests.kills`): in the style of Keras's guides, and small ones over turns, batches, epochs."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

from tests.keras.inside import said_of
from tests.keras.models import gradients_of
from tests.kills.keras import Job
from tranlogs_keras import LoggedOptimizer

EPOCHS, ROWS, BATCH, STEPS = 3, 80, 16, 12
layers = keras.layers


def arrays() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(ROWS, 8)).astype("float32"), draw.integers(0, 3, ROWS)


def classifier() -> keras.Model:
    inputs = keras.Input((8,))
    x = layers.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3))(inputs)
    x = layers.Dropout(0.2)(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def compiled(job: Job) -> None:
    """Take steps of two optimizers in one compiled function, over a shuffled pipeline, with noise of a seed generator.

    TensorFlow computes the operations as they are written, with and without TranLogs: rewritten, it rounds otherwise where
    updates stand apart.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    keras.utils.set_random_seed(2)
    data = tf.data.Dataset.from_tensor_slices(arrays()[0]).shuffle(ROWS, seed=3).batch(BATCH)
    models = [keras.Sequential([keras.Input((8,)), layers.BatchNormalization(), layers.Dense(2)]) for _ in range(2)]
    plain = [keras.optimizers.SGD(1e-2, momentum=0.9) for _ in models]
    seeds, mean = keras.random.SeedGenerator(9), keras.metrics.Mean()
    optimizers: list[Any] = list(plain)
    if job.run is not None:
        optimizers[0] = job.wrap(plain[0], models[0], checkpoint_every=4).track(seeds=seeds, mean=mean)
        optimizers[1] = optimizers[0].add_optimizer(plain[1], "other", models[1])

    @tf.function
    def train_step(rows: Any) -> None:
        rows = rows + keras.random.normal((BATCH, 8), seed=seeds)
        with tf.GradientTape(persistent=True) as tape:
            losses = [tf.reduce_mean((model(rows, training=True) - number) ** 2) for number, model in enumerate(models)]
        for model, optimizer, loss in zip(models, optimizers, losses):
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            mean.update_state(loss)

    for epoch in range(EPOCHS) if job.run is None else optimizers[0].epochs(EPOCHS, data):
        for rows in data if job.run is None else epoch:
            train_step(rows)
            job.at("batch")
        job.print(int(epoch), float(mean.result()))
        mean.reset_state()
        job.at("epoch")
    if job.run is not None:
        optimizers[0].close()
    job.keep(state=[*models, *plain])


def torch_guide(job: Job, tracks: bool = True) -> None:
    """Keras's guide to a loop from scratch on PyTorch."""
    import torch

    keras.utils.set_random_seed(1)
    x, y = arrays()
    rows = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH, shuffle=True)
    model, plain = classifier(), keras.optimizers.Adam(1e-2)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    optimizer: Any = plain
    if job.run is not None:
        optimizer = job.wrap(plain, model, checkpoint_every=4).track(**({"accuracy": accuracy} if tracks else {}))
    for epoch in range(EPOCHS) if job.run is None else optimizer.epochs(EPOCHS, loader):
        for xs, ys in loader if job.run is None else epoch:
            logits = model(xs, training=True)
            loss = loss_of(ys, logits)
            model.zero_grad()
            loss.backward()
            weights = list(model.trainable_weights)
            with torch.no_grad():
                optimizer.apply([v.value.grad for v in weights], weights)
            accuracy.update_state(ys, logits)
            job.at("batch")
        job.print(int(epoch), float(accuracy.result()))
        accuracy.reset_state()
        job.at("epoch")
    if job.run is not None:
        optimizer.close()
    job.keep(state=[model, plain, accuracy])


def has_recovered_weights(run: str, path: str) -> bool:
    """Return True if a file of weights holds what a process that goes on with the run of `torch_guide` recovers."""
    models = [classifier() for _ in range(2)]
    optimizer = LoggedOptimizer(keras.optimizers.Adam(1e-2), run, models[0], recheck=False)
    optimizer.track(accuracy=keras.metrics.SparseCategoricalAccuracy()).recover()
    models[1].load_weights(path)
    recovered, loaded = ([value.tobytes() for value in model.get_weights()] for model in models)
    return recovered == loaded  # such a file has no counters of Dropout


class Small:
    """A small model, its optimizer, and rows for it; a script trains it by `step`. `middle` make further layers."""

    def __init__(self, job: Job, *middle: Any, optimizer: Any = None, **options: Any) -> None:
        keras.utils.set_random_seed(4)
        self.job, (self.x, self.y) = job, arrays()
        self.model = keras.Sequential(
            [keras.Input((8,)), layers.Dense(6, activation="tanh"), *(make() for make in middle), layers.Dense(3)]
        )
        self.plain = optimizer or keras.optimizers.Adam(1e-2)
        self.optimizer: Any = self.plain
        if job.run is not None:
            self.optimizer = job.wrap(self.plain, self.model, **({"checkpoint_every": 4} | options))

    def gradients(self, x: Any, y: Any) -> list[Any]:
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return gradients_of(lambda: loss_of(y, self.model(x, training=True)), list(self.model.trainable_weights))[1]

    def step(self, x: Any, y: Any, scale: float = 1.0) -> Any:
        """Take a step; return the last gradient's sum."""
        found = [gradient * scale for gradient in self.gradients(x, y)]
        self.job.at("step")
        self.optimizer.apply(found, list(self.model.trainable_weights))
        return float(keras.ops.sum(found[-1] * found[-1]))

    def step_on(self, rows: Any) -> Any:
        return self.step(self.x[rows], self.y[rows])

    def turns(self, steps: int = STEPS, **options: Any) -> Any:
        return range(steps) if self.job.run is None else self.optimizer.steps(steps, **options)

    def keep(self, **values: Any) -> None:
        """End the script."""
        if self.job.run is not None:
            self.optimizer.close()
        self.job.keep(state=[self.model, self.plain], **values)


class Waiting:
    """Batches of an array; the next one lies ready."""

    def __init__(self) -> None:
        self.rows = self.draw()

    def draw(self) -> Any:
        return np.random.randint(0, ROWS, 8)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]


def turns(job: Job, how: str, declares_late: bool = False) -> None:
    """Loop without data in the style of nanoGPT; the next batch may wait in a variable.

    Args:
        job: this life.
        how: "tracked": the batch that waits is; "untracked": it is not; "stateless": it is drawn in the turn that uses it.
        declares_late: whether that is said by the last process only.
    """
    it = Small(job, layers.BatchNormalization)
    waiting = Waiting()
    if job.run is not None:
        it.optimizer.track(**({"waiting": waiting} if how == "tracked" else {})).recover()
    is_known = how == "tracked" or (how == "stateless" and (job.death is None or not declares_late))
    for _ in it.turns(stateless=is_known):
        it.step_on(waiting.draw() if how == "stateless" else waiting.rows)
        if how != "stateless":
            waiting.rows = waiting.draw()
    it.keep()


def remember(job: Job) -> None:
    """Train on rows that wait, drawn by a generator, with a decaying mean of gradients as a tensor and the last losses."""
    it = Small(job)
    values = {"chance": np.random.default_rng(7), "waiting": None, "mean": keras.ops.zeros((3,)), "best": float("inf")}
    values |= {"last": deque(maxlen=3), "python": random.Random(3)}
    state: Any = SimpleNamespace(**values)
    if job.run is not None:
        state = it.optimizer.remember(**values)
        assert it.optimizer.remember_times(clock=0.0) is state
        assert it.optimizer.recover().step == 0 or len(state.last) == min(3, it.optimizer.report.step), "they are there at once"

    def draw_rows() -> Any:
        weights = keras.ops.cast(keras.ops.arange(1, 9) / 8, "float32") * float(np.random.random())
        return state.chance.integers(0, ROWS, 8), weights

    if state.waiting is None:
        state.waiting = draw_rows()
    for turn in it.turns(stateless=True):
        rows, weights = state.waiting
        state.waiting = draw_rows()
        found = it.gradients(it.x[rows] * keras.ops.convert_to_numpy(weights)[:, None], it.y[rows])
        state.mean = 0.9 * state.mean + found[-1]
        found[-1] = found[-1] + state.mean * state.python.random()
        job.at("step")
        it.optimizer.apply(found, list(it.model.trainable_weights))
        state.last.append((turn, float(keras.ops.sum(found[-1]))))
        state.best, state.clock = min(state.best, state.last[-1][1]), time.perf_counter()
    mean = keras.ops.convert_to_numpy(state.mean).tolist()
    it.keep(history=[state.best, list(state.last), mean, str(state.mean.dtype)])


def count(job: Job) -> None:
    """Train at a rate that depends on the number of the batch, and sum losses up."""
    it = Small(job, optimizer=keras.optimizers.SGD(1e-2))
    state = it.optimizer.remember(total=0.0)
    it.optimizer.recover()
    for number, batch in it.optimizer.batches((it.x, it.y), until=3 * ROWS // 8, batch_size=8, enumerate=True):
        it.plain.learning_rate = 0.01 * (1 + number)
        state.total += it.step(*batch)
    it.keep(history=[state.total])


class Drawing:
    """Batches at random places, from a generator of its own; each pass has four."""

    def __init__(self) -> None:
        self.draws = np.random.default_rng(6)

    def __iter__(self) -> Any:
        x, y = arrays()
        for _ in range(4):
            rows = (self.draws.random(8) * ROWS).astype(int)
            yield x[rows], y[rows]


def iterate(job: Job) -> None:
    """Train on an iterable of the script's own, in epochs."""
    it = Small(job)
    for epoch in it.optimizer.epochs(3, Drawing()):
        for batch in epoch:
            it.step(*batch)
    it.keep()


def sequence(job: Job, last: int = 2) -> None:
    """Train three loops with code between them, of which the last one has that many turns."""
    it = Small(job, seed=5)
    it.optimizer.recover()
    for epoch in it.optimizer.epochs(2, (it.x[:24], it.y[:24]), batch_size=8):
        for i, batch in epoch.enumerate():
            job.print("first", int(epoch), i, it.step(*batch))
    job.at("between")
    it.optimizer.learning_rate = 0.001
    it.model.set_weights([weight * 0.5 for weight in it.model.get_weights()])
    job.at("between")
    for epoch in it.optimizer.epochs(2, (it.x[24:], it.y[24:]), batch_size=28):
        for i, batch in epoch.enumerate():
            job.print("second", int(epoch), i, it.step(*batch))
    for turn in it.optimizer.steps(last, stateless=True):
        job.print("third", turn, it.step_on(np.arange(turn, turn + 3)))
    it.keep()


def left(job: Job, limit: int) -> None:
    """Leave the first loop after so many steps of the run, by `break`; then train two epochs."""
    it = Small(job, lambda: layers.Dropout(0.2), seed=5)
    state = it.optimizer.remember(count=0)
    it.optimizer.recover()
    data = it.x[:24], it.y[:24]
    for epoch in it.optimizer.epochs(4, data, batch_size=8):
        if state.count >= limit:
            break
        for batch in epoch:
            it.step(*batch)
            state.count += 1
            if state.count >= limit:
                break
    it.optimizer.learning_rate = 0.01
    for epoch in it.optimizer.epochs(2, data, batch_size=8):
        for batch in epoch:
            it.step(*batch)
            state.count += 1
    it.keep(count=state.count)


def stop(job: Job, how: str, steps: int = 7) -> None:
    """Leave the only loop behind its seventh turn, by `break` or by an exception."""
    it = Small(job)
    waiting = Waiting()
    try:
        for number in it.turns(stateless=True):
            it.step_on(waiting.draw())
            if number == steps - 1:
                if how == "break":
                    break
                raise KeyError(how)
    finally:
        it.keep()


def warm_up(job: Job, steps: int) -> None:
    """Take steps outside of all loops, then some in a loop."""
    it = Small(job, optimizer=keras.optimizers.SGD(1e-2), checkpoint_every=1000)
    waiting = Waiting()
    if job.run is not None:
        it.optimizer.recover()
    while int(it.plain.iterations) < steps:
        it.step_on(waiting.draw())
    for _ in it.turns(stateless=True):
        it.step_on(waiting.draw())
    it.keep()


def outside(job: Job) -> None:
    """Leave a loop of nine turns behind its fifth, and take steps outside of all loops then, 14 in all."""
    it = Small(job)
    for turn in it.turns(9, stateless=True):
        it.step_on(np.arange(turn, turn + 8))
        if turn == 4:
            break
    while int(it.plain.iterations) < 14:
        it.step_on(np.arange(8) + int(it.plain.iterations))
    it.keep()


def noisy(job: Job) -> None:
    """Take steps of which the sixth is another one in each process."""
    it = Small(job)
    for turn in it.turns(40, stateless=True):
        it.step(it.x[turn : turn + 8], it.y[turn : turn + 8], float(os.getpid()) if turn == 5 else 1.0)
    it.keep()


# Changes that a script makes on purpose between `recover()` and the loop.


def _clear_moments(it: Small, state: Any) -> None:
    for variable in it.plain.variables[2:]:  # behind the counter and the rate
        variable.assign(keras.ops.zeros_like(variable))


def _set_state(it: Small, state: Any) -> None:
    state.scale, state.last = 2.0, [7]


def _set_row(it: Small, state: Any) -> None:
    weights = it.model.layers[0].get_weights()
    weights[0][2] = 0.5
    it.model.layers[0].set_weights(weights)


def _set_the_same(it: Small, state: Any) -> None:
    it.model.set_weights(it.model.get_weights())
    for variable in it.plain.variables:
        variable.assign(keras.ops.copy(variable.value))
    state.scale = float(state.scale)


def _look(it: Small, state: Any) -> None:
    """What is no change: a forward pass that moves statistics and draws, and random numbers."""
    it.model(np.ones((4, 8), "float32"), training=True)
    np.random.random(3)


CHANGES = {
    "rate": lambda it, _: setattr(it.plain, "learning_rate", 0.003),
    "weights": lambda it, _: it.model.layers[0].bias.assign(np.full(6, 0.5, "float32")),
    "moments": _clear_moments,
    "state": _set_state,
    "row": _set_row,
    "same": _set_the_same,
    "look": _look,
}


def change(job: Job, changes: tuple[str, ...] = (), at: int = -1, resumes: bool = False) -> None:
    """Train; the changes come between `recover()` and the loop if `resumes`, without TranLogs before turn `at`."""
    it = Small(job, layers.BatchNormalization, lambda: layers.Dropout(0.2))
    values: dict[str, Any] = {"scale": 1.0, "last": []}
    state: Any = SimpleNamespace(**values)
    if job.run is not None:
        state = it.optimizer.remember(**values)
        it.optimizer.recover()
    for name in changes if resumes else ():
        CHANGES[name](it, state)
    for turn in it.turns(stateless=True):
        for name in changes if job.run is None and turn == at else ():
            if name not in ("look", "same"):
                CHANGES[name](it, state)
        it.step(it.x[turn : turn + BATCH], it.y[turn : turn + BATCH], state.scale)
        state.last.append(turn)
        if job.run is not None and job.options.get("log") == "inputs":
            job.print("again" if it.optimizer.is_recomputing else "new")
            it.optimizer._run.resources.journal.wait_checkpoint()  # that of the turn before, on which the next life builds
    it.keep(history=[state.scale, state.last])


# Wrong uses, and values that no loop can keep, each with what it says.


class Holder:
    """Has a state that only pickle could store."""

    def state_dict(self) -> dict[str, Any]:
        return {"x": object()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("its state was never stored")


def _said(acts: dict[str, Any]) -> dict[str, str]:
    return dict(zip(acts, said_of(*acts.values()), strict=True))


def refusals(run: str) -> dict[str, str]:
    """Return the message of each wrong use."""
    adam, model, other = keras.optimizers.Adam(), classifier(), classifier()
    found = _said({"no optimizer": lambda: LoggedOptimizer("adam", f"{run}/a", model)})
    found |= _said({"no model": lambda: LoggedOptimizer(adam, f"{run}/b", None)})
    if keras.backend.backend() == "jax":
        return found
    logged = LoggedOptimizer(adam, f"{run}/c", model)
    logged.track(numbers=np.random.default_rng(0))
    gradients = [np.zeros(v.shape, "float32") for v in other.trainable_variables]
    found |= _said(
        {
            "wrapped twice": lambda: LoggedOptimizer(logged, f"{run}/d", model),
            "logged already": lambda: LoggedOptimizer(adam, f"{run}/e", model),
            "tracked": lambda: logged.track(thing=object()),
            "tracked, unstorable": lambda: logged.track(holder=Holder()),
            "tracked twice": lambda: logged.track(numbers=np.random.default_rng(1)),
            "other variables": lambda: logged.apply(gradients, other.trainable_variables),
            "no bound": lambda: next(iter(logged.batches(arrays(), batch_size=4))),
        }
    )
    logged.close()
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    found |= _said({"unbuilt": lambda: LoggedOptimizer(keras.optimizers.Adam(), f"{run}/f", unbuilt).recover()})
    return found | (_of_the_other_integration(adam, model, run) if keras.backend.backend() == "torch" else {})


def _of_the_other_integration(adam: Any, model: Any, run: str) -> dict[str, str]:
    import torch

    import tranlogs_torch

    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    return _said(
        {
            "torch's given to Keras's": lambda: LoggedOptimizer(sgd, f"{run}/g", model),
            "Keras's given to torch's": lambda: tranlogs_torch.LoggedOptimizer(adam, f"{run}/h"),
            "a nested one of Keras's": lambda: tranlogs_torch.LoggedOptimizer(scaled, f"{run}/i"),
        }
    )


def values(run: str) -> list[str]:
    """Return what is said of values of Keras that cannot be remembered, and of one that comes late."""
    model = classifier()
    optimizer = LoggedOptimizer(keras.optimizers.SGD(1e-2), run, model, segment_bytes=1 << 20)
    found = said_of(
        lambda: optimizer.remember(layer=model.layers[1]),
        lambda: optimizer.remember(seeds=(keras.random.SeedGenerator(1),)),
        lambda: (optimizer.recover(), optimizer.remember(late=1)),
    )
    optimizer.close()
    return found


def renamed(run: str) -> list[str]:
    """Return the notes of a run that goes on with a generator tracked under another name."""
    notes: list[str] = []
    for name, until in (("noise", 3), ("dropout", 5)):
        model, numbers = classifier(), np.random.default_rng(0)
        logged = LoggedOptimizer(keras.optimizers.SGD(), run, model, segment_bytes=1 << 20)
        logged.track(**{name: numbers})
        for _ in logged.batches(arrays(), until=until, batch_size=4):
            numbers.random()
            logged.apply([keras.ops.ones(v.shape) for v in model.trainable_variables], model.trainable_variables)
        assert logged.report.exact is None or name == "noise"
        notes = logged.report.notes
        logged.close()
    return notes
