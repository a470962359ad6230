"""Pipelines of tf.data as scripts write them, and what a source of batches makes of them after a crash."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.public.keras.proof import Kill, outcome
from tranlogs_keras import TranLogsCallback
from tranlogs_keras.data.tf_dataset import TFDatasetBatches
from tranlogs_keras.data.tf_doubts import doubts_about


def numbers() -> Any:
    return tf.data.Dataset.range(24)


def twice(x: Any) -> Any:
    return tf.data.Dataset.from_tensors(x).repeat(2)


def shuffled() -> Any:
    return numbers().shuffle(9, seed=3)


ENDING = {
    "shuffle": lambda: shuffled().batch(4),
    "shuffle-prefetch": lambda: shuffled().batch(4).prefetch(2),
    "full-shuffle": lambda: numbers().shuffle(100, seed=3).batch(4).prefetch(2),
    "shuffle-repeat": lambda: shuffled().repeat(2).batch(4),
    "shuffle-repeat-prefetch": lambda: shuffled().repeat(2).batch(4).prefetch(3),
    "repeat-shuffle": lambda: numbers().repeat(2).shuffle(9, seed=3).batch(4).prefetch(2),
    "shuffle-batch-repeat": lambda: shuffled().batch(5).repeat(2).prefetch(2),
    "take": lambda: shuffled().take(15).batch(4).prefetch(2),
    "repeat-take": lambda: shuffled().repeat().take(60).batch(5).prefetch(2),
    "map": lambda: shuffled().map(lambda x: x * 2, num_parallel_calls=2).batch(4).prefetch(2),
    "interleave": lambda: shuffled().interleave(twice, cycle_length=3).batch(4).prefetch(2),
    "fixed": lambda: numbers().shuffle(9, seed=3, reshuffle_each_iteration=False).batch(4).prefetch(2),
    "several": lambda: shuffled().shuffle(5, seed=4).repeat(2).batch(4).prefetch(2),
}
ENDLESS = {
    "shuffle-repeat": lambda: shuffled().repeat().batch(4),
    "shuffle-repeat-prefetch": lambda: shuffled().repeat().batch(4).prefetch(2),
    "repeat-shuffle": lambda: numbers().repeat().shuffle(9, seed=3).batch(4).prefetch(2),
    "shuffle-batch-repeat": lambda: shuffled().batch(5).repeat().prefetch(2),
    "full-shuffle": lambda: numbers().shuffle(100, seed=3).repeat().batch(5).prefetch(tf.data.AUTOTUNE),
    "filter": lambda: shuffled().repeat().filter(lambda x: x % 3 > 0).batch(4).prefetch(2),
    "map": lambda: shuffled().map(lambda x: x * 2, num_parallel_calls=2).repeat().batch(5).prefetch(2),
    "interleave": lambda: shuffled().interleave(twice, cycle_length=3).repeat().batch(5).prefetch(2),
    "several": lambda: shuffled().shuffle(5, seed=4).repeat().batch(4).prefetch(2),
}


class _Keras:
    """Stands for Keras's epoch iterator."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def _get_iterator(self) -> Any:
        return self._dataset


def wrong_orders(kind: str, name: str) -> tuple[list[Any], int, list[str]]:
    """Return (pass, checkpoint, crash) wherever later batches are others, how many were tried, and the doubts."""
    make = (ENDLESS if kind == "endless" else ENDING)[name]
    is_endless = kind == "endless"
    length = 30 if is_endless else sum(1 for _ in make())
    checkpoints = {1, 2, 5, 6, 7, 13, 20} if is_endless else {1, length // 2, length - 2, length - 1}
    passes = 1 if is_endless else 3
    wrong, tried = [], 0
    for crashed in range(max(passes - 1, 1)):
        for at in sorted(checkpoints):
            for crash in sorted({at, min(at + 3, length - 1), length - 1}):
                tried += 1
                right = _Run(make(), length, is_endless)
                before = [right.one_pass(number, 0, (at, crash) if number == crashed else ()) for number in range(passes)]
                resumed = _Run(make(), length, is_endless)
                resumed.source.write(right.seen[crash][0])
                resumed.source.write_from_checkpoint(right.seen[at][1], at)
                found = [before[crashed][:crash] + resumed.one_pass(crashed, crash, ())]
                found += [resumed.one_pass(number, 0, ()) for number in range(crashed + 1, passes)]
                if found != before[crashed:]:
                    wrong.append((crashed, at, crash))
    return wrong, tried, doubts_about(make())


class _Run:
    def __init__(self, dataset: Any, length: int, is_endless: bool) -> None:
        self.source = TFDatasetBatches(_Keras(dataset))
        self.seen: dict[int, Any] = {}
        self._length, self._is_endless = length, is_endless

    def one_pass(self, number: int, taken: int, looks: tuple[int, ...]) -> list[Any]:
        batches, found = self.source.open(number, taken), []
        for at in range(taken, self._length):
            if at in looks:
                self.seen[at] = self.source.read({}), self.source.read_for_checkpoint()
            found.append(np.asarray(next(batches)).tolist())
        if not self._is_endless:
            self.source.close()
            self.source.open_spare()
        return found


def doubts() -> dict[str, str]:
    """Return what is said of pipelines whose order does not come back."""
    ready = tf.data.Options()
    ready.deterministic = False
    inner = lambda x: tf.data.Dataset.range(x)  # noqa: E731
    sets = {
        "seeded": shuffled().repeat().batch(4),
        "ordered": numbers().interleave(inner, num_parallel_calls=2).map(lambda x: x, num_parallel_calls=2),
        "unseeded": numbers().shuffle(9).batch(4),
        "several": shuffled().shuffle(5, seed=4).repeat(),
        "interleave": numbers().interleave(inner, cycle_length=3, num_parallel_calls=2, deterministic=False),
        "map": numbers().map(lambda x: x, num_parallel_calls=2, deterministic=False),
        "options": numbers().map(lambda x: x, num_parallel_calls=2).with_options(ready),
    }
    return {name: " | ".join(doubts_about(dataset)) for name, dataset in sets.items()}


def endless(run: str, die: list[Any] | None) -> dict[str, Any]:
    """Train on shuffle().repeat().batch() with steps_per_epoch."""
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(64, seed=3).repeat().batch(12)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    callback = TranLogsCallback(run, checkpoint_every=4, segment_bytes=1 << 20, verbose=False)
    history = model.fit(dataset, steps_per_epoch=10, epochs=4, verbose=0, callbacks=[callback, Kill(die)])
    return outcome(model, callback, history)
