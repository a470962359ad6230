"""Real data, 8 x 8 images of digits, in every form that `fit` takes."""

from __future__ import annotations

import functools
import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

SAMPLES, BATCH, EPOCHS = 78, 8, 3  # ten batches an epoch, the last one partial


@functools.cache
def _stored() -> tuple[Any, Any]:
    """Return what scikit-learn's load_digits() does, without its import, which takes seconds."""
    found = importlib.util.find_spec("sklearn")
    assert found is not None
    assert found.origin is not None
    rows = np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(int)


def digits(count: int = SAMPLES, *, first: int = 0) -> tuple[Any, Any]:
    """Return images of digits (8 x 8 x 1, from 0 to 1) and their labels; they are read once, by the server."""
    images, labels = _stored()
    chosen = slice(first, first + count)
    return (images[chosen].reshape(-1, 8, 8, 1) / 16).astype("float32"), labels[chosen].astype("int64")


class Numbered(keras.utils.PyDataset):
    """Batches by number."""

    def __init__(self, x: Any, y: Any, **options: Any) -> None:
        super().__init__(**options)
        self.x, self.y = x, y

    def __len__(self) -> int:
        return -(-len(self.x) // BATCH)

    def __getitem__(self, i: int) -> Any:
        at = slice(i * BATCH, (i + 1) * BATCH)
        return self.x[at], self.y[at]


class OwnOrder(Numbered):
    """Shuffles at the end of an epoch, by numpy's random numbers and by a generator of its own."""

    def __init__(self, x: Any, y: Any, **options: Any) -> None:
        super().__init__(x, y, **options)
        self.order, self.random = np.arange(len(x)), np.random.default_rng(3)

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)
        self.random.shuffle(self.order)

    def __getitem__(self, i: int) -> Any:
        at = self.order[i * BATCH : (i + 1) * BATCH]
        return self.x[at], self.y[at]


class Unstorable(Numbered):
    """Comes to hold something that no log takes."""

    held: Any = 0

    def on_epoch_end(self) -> None:  # Keras calls it when it looks at the first batches, too
        self.held = print if self.held else 1


class Lying:
    """Cannot even be looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("nobody looks at this")


class Unreadable(Numbered):
    """Comes to hold something that fails when it is read."""

    begun = 0

    def on_epoch_begin(self) -> None:  # Keras calls it when it looks at the first batches, too
        self.begun += 1
        if self.begun > 2:
            self.held = Lying()


class Augmented(Numbered):
    """Batches draw random numbers, of numpy and of Python."""

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x + np.random.standard_normal(x.shape).astype("float32") * 0.1 * random.random(), y


def _endless(x: Any, y: Any) -> Any:
    while True:
        at = np.random.randint(0, len(x), BATCH)
        yield x[at], y[at]


def _loader(x: Any, y: Any) -> dict[str, Any]:
    import torch

    torch.manual_seed(3)
    tensors = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    return {"x": torch.utils.data.DataLoader(tensors, batch_size=BATCH, shuffle=True)}


def _dataset(x: Any, y: Any, kind: str) -> dict[str, Any]:
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "python":  # has no checkpoint of its own
        spec = (tf.TensorSpec((8, 8, 1), tf.float32), tf.TensorSpec((), tf.int64))
        rows = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec)
        return {"x": rows.shuffle(32, seed=3).batch(BATCH)}
    if kind == "repeat":
        return {"x": rows.shuffle(32, seed=3).repeat().batch(BATCH).prefetch(2), "steps_per_epoch": 10}
    return {"x": rows.shuffle(32, seed=3).batch(BATCH).prefetch(2)}


_KINDS: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "arrays": lambda x, y: {"x": x, "y": y, "batch_size": BATCH},
    "arrays-in-order": lambda x, y: {"x": x, "y": y, "batch_size": BATCH, "shuffle": False},
    "arrays-by-batch": lambda x, y: {"x": x, "y": y, "batch_size": BATCH, "shuffle": "batch"},
    # Passes that go on from one epoch to the next.
    "arrays-steps": lambda x, y: {"x": x, "y": y, "batch_size": BATCH, "steps_per_epoch": 5},
    "arrays-class-weight": lambda x, y: {"x": x, "y": y, "batch_size": BATCH, "class_weight": {i: 1.0 + i for i in range(10)}},
    "arrays-sample-weight": lambda x, y: {"x": x, "y": y, "batch_size": BATCH, "sample_weight": 1.0 + y.astype("float32")},
    "numbered": lambda x, y: {"x": Numbered(x, y), "shuffle": True},
    "numbered-workers": lambda x, y: {"x": Numbered(x, y, workers=2), "shuffle": True},
    "numbered-own-order": lambda x, y: {"x": OwnOrder(x, y), "shuffle": False},
    "numbered-unstorable": lambda x, y: {"x": Unstorable(x, y), "shuffle": True},
    "numbered-unreadable": lambda x, y: {"x": Unreadable(x, y), "shuffle": True},
    "numbered-augmented": lambda x, y: {"x": Augmented(x, y), "shuffle": True},
    "generator": lambda x, y: {"x": _endless(x, y), "steps_per_epoch": 10},
    "loader": _loader,
    "dataset": lambda x, y: _dataset(x, y, ""),
    "dataset-repeat": lambda x, y: _dataset(x, y, "repeat"),
    "dataset-python": lambda x, y: _dataset(x, y, "python"),
}


def given(data: str, **digits_options: Any) -> dict[str, Any]:
    """Return arguments of `fit`."""
    return _KINDS[data](*digits(**digits_options))
