"""tf.data pipelines that are left after any batch, taken up by another process, and compared with one that read on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.support import campaign
from tranlogs_keras.data.tf_dataset import TFDatasetBatches, stages_of

Batch = tuple[int, ...]
_ROWS, _ENDLESS = 24, 40 if campaign.is_soak() else 26


def rows() -> Any:
    return tf.data.Dataset.range(_ROWS)


def twice(x: Any) -> Any:
    return tf.data.Dataset.from_tensors(x).repeat(2)


def doubled(x: Any) -> Any:
    return 2 * x


FINITE: dict[str, Callable[[], Any]] = {
    "shuffle, prefetch": lambda: rows().shuffle(9, seed=3).batch(4).prefetch(2),
    "shuffle of all": lambda: rows().shuffle(100, seed=3).batch(4).prefetch(2),
    "shuffle, repeat(2), prefetch": lambda: rows().shuffle(9, seed=3).repeat(2).batch(4).prefetch(3),
    "repeat(2), shuffle": lambda: rows().repeat(2).shuffle(9, seed=3).batch(4).prefetch(2),
    "batch, repeat(2)": lambda: rows().shuffle(9, seed=3).batch(5).repeat(2).prefetch(2),
    "take": lambda: rows().shuffle(9, seed=3).take(15).batch(4).prefetch(2),
    "map": lambda: rows().shuffle(9, seed=3).map(doubled, num_parallel_calls=2).batch(4).prefetch(2),
    "interleave": lambda: rows().shuffle(9, seed=3).interleave(twice, cycle_length=3).batch(4).prefetch(2),
    "zip": lambda: tf.data.Dataset.zip(rows().shuffle(9, seed=3), rows().shuffle(8, seed=5)).batch(4).prefetch(2),
    "cache": lambda: rows().cache().shuffle(9, seed=3).batch(4).prefetch(2),
    "shuffle, batch, shuffle": lambda: rows().shuffle(9, seed=3).batch(4).shuffle(2, seed=4),
    "shuffled once": lambda: rows().shuffle(9, seed=3, reshuffle_each_iteration=False).batch(4).prefetch(2),
}
ENDLESS: dict[str, Callable[[], Any]] = {
    "shuffle, repeat, prefetch": lambda: rows().shuffle(9, seed=3).repeat().batch(4).prefetch(2),
    "shuffle of all, repeat": lambda: rows().shuffle(100, seed=3).repeat().batch(5).prefetch(tf.data.AUTOTUNE),
    "repeat, shuffle": lambda: rows().repeat().shuffle(9, seed=3).batch(4).prefetch(2),
    "batch, repeat": lambda: rows().shuffle(9, seed=3).batch(5).repeat().prefetch(2),
    "interleave, repeat": lambda: rows().shuffle(9, seed=3).interleave(twice, cycle_length=3).repeat().batch(5),
}


class Opened:
    """What Keras' epoch iterator is to a source."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def _get_iterator(self) -> Any:
        return self._dataset


def source_of(dataset: Any) -> TFDatasetBatches:
    return TFDatasetBatches(Opened(dataset), stages_of(dataset))


def read_pass(source: TFDatasetBatches, length: int, *, number: int, seen: int, stored: dict[int, Any]) -> list[Batch]:
    """Read a pass to its end, and keep the states behind the batches that are keys of `stored`, or at the end."""
    batches, found = source.open(number, seen), []
    for place in range(seen, length):
        if place in stored:
            stored[place] = source.read({}), source.read_for_checkpoint()
        found.append(tuple(np.asarray(next(batches)).ravel().tolist()))
    source.close()
    source.open_spare()  # as Keras does where the number of batches is known
    if length in stored:
        stored[length] = source.read({}), {}
    return found


def all_wrong_places() -> dict[str, list[str]]:
    """Return the places from which pipelines go on with other batches: a checkpoint, and a crash there or later.

    Finite pipelines are left in the first pass and in the second one: in the gate in one of them, by turns, and near its ends.
    """
    found = {name: _wrong_places(make, [0], is_endless=True) for name, make in ENDLESS.items()}
    for number, (name, make) in enumerate(FINITE.items()):
        found[name] = _wrong_places(make, [0, 1] if campaign.is_soak() else [number % 2], is_endless=False)
    return {name: places for name, places in found.items() if places}


def _wrong_places(make: Callable[[], Any], passes_left: Sequence[int], *, is_endless: bool) -> list[str]:
    length = _ENDLESS if is_endless else sum(1 for _ in make())
    passes = 1 if is_endless else 3
    checkpoints = {5, 13} if is_endless else {1, length - 1}
    if campaign.is_soak() and not is_endless:
        checkpoints |= {length // 2, length - 2}
    wrong = []
    for left in passes_left:
        places = [
            (checkpoint, crash)
            for checkpoint in sorted(checkpoints)
            for crash in sorted({checkpoint, checkpoint + 1, checkpoint + 9, length - 1, length})
            if crash <= length
        ]
        # Prefetching may have come to the end of a repetition at any place.
        last = 20 if campaign.is_soak() else 13  # of the third repetition, or the second
        places = sorted({*places, *((place, place) for place in range(1, last + 1))}) if is_endless else places
        stored: dict[int, Any] = {place: None for pair in places for place in pair}
        whole = source_of(make())
        right = [read_pass(whole, length, number=n, seen=0, stored=stored if n == left else {}) for n in range(passes)]
        for checkpoint, crash in places:
            if not _goes_on(make, right, left, stored, checkpoint, crash):
                wrong.append(f"pass {left}, checkpoint after {checkpoint}, crash after {crash} of {length} batches")
    return wrong


def _goes_on(
    make: Callable[[], Any], right: list[list[Batch]], left: int, stored: dict[int, Any], checkpoint: int, crash: int
) -> bool:
    resumed, length = source_of(make()), len(right[left])
    resumed.write(stored[crash][0])
    if crash == length:
        found = [right[left]]
    else:
        resumed.write_from_checkpoint(stored[checkpoint][1], checkpoint)
        found = [right[left][:crash] + read_pass(resumed, length, number=left, seen=crash, stored={})]
    found += [read_pass(resumed, length, number=n, seen=0, stored={}) for n in range(left + 1, len(right))]
    return found == right[left:]


def doubts() -> dict[str, str]:
    """Return what is said of pipelines before training, of those of which something is."""
    from tranlogs_keras.data.tf_dataset import doubts_about

    unordered = tf.data.Options()
    unordered.deterministic = False
    floats = rows().map(lambda x: tf.cast(x, tf.float32)[None])
    flip = keras.layers.RandomFlip(seed=3)
    pipelines = {
        **{name: make() for name, make in (FINITE | ENDLESS).items()},
        "unseeded": rows().shuffle(9).batch(4),
        "unordered": rows().with_options(unordered).batch(4),
        "unordered interleave": rows().interleave(twice, num_parallel_calls=2, deterministic=False).batch(4),
        "unordered map": rows().map(doubled, num_parallel_calls=2, deterministic=False).batch(4),
        "layer": floats.map(lambda x: flip(x[None, None], training=True)).batch(4),
        "python": floats.map(lambda x: tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), (1,))).batch(4),
        "random in parallel": floats.map(_noisy, num_parallel_calls=2).batch(4),
        "random in turn": floats.map(_noisy).batch(4),
    }
    said = {name: " | ".join(doubts_about(dataset, stages_of(dataset))) for name, dataset in pipelines.items()}
    return {name: words for name, words in said.items() if words}


def _noisy(x: Any) -> Any:
    return x + tf.random.normal(tf.shape(x))
