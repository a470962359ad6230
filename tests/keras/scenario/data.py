"""Real data, 8 x 8 images of digits, in every form that `fit` takes."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
from sklearn.datasets import load_digits

SAMPLES, BATCH, EPOCHS = 78, 8, 3  # ten batches an epoch, the last one partial


_stored = functools.cache(lambda: load_digits(return_X_y=True))


def stored_digits() -> tuple[Any, Any]:
    """Return all images and labels, as scikit-learn does; they are read once, by the server."""
    images, labels = _stored()
    return images.copy(), labels.copy()


def digits() -> tuple[Any, Any]:
    """Real data: 8 x 8 images of digits."""
    images, labels = stored_digits()
    return (images[:SAMPLES].reshape(-1, 8, 8, 1) / 16).astype("float32"), labels[:SAMPLES].astype("int64")


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
    """Shuffles by itself at the end of an epoch, as many do."""

    def __init__(self, x: Any, y: Any, **options: Any) -> None:
        super().__init__(x, y, **options)
        self.order = np.arange(len(x))

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)

    def __getitem__(self, i: int) -> Any:
        at = self.order[i * BATCH : (i + 1) * BATCH]
        return self.x[at], self.y[at]


class Unstorable(Numbered):
    """Comes to hold something that no log takes."""

    def __init__(self, x: Any, y: Any, **options: Any) -> None:
        super().__init__(x, y, **options)
        self.held: Any = 0

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
    """Batches draw random numbers."""

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x + np.random.standard_normal(x.shape).astype("float32") * 0.1, y


def given(data: str) -> dict[str, Any]:
    """Arguments of `fit`."""
    x, y = digits()
    if data == "arrays":
        return {"x": x, "y": y, "batch_size": BATCH}
    if data == "arrays-in-order":
        return {"x": x, "y": y, "batch_size": BATCH, "shuffle": False}
    if data == "arrays-by-batch":
        return {"x": x, "y": y, "batch_size": BATCH, "shuffle": "batch"}
    if data == "arrays-steps":  # passes that go on from one epoch to the next
        return {"x": x, "y": y, "batch_size": BATCH, "steps_per_epoch": 5}
    if data == "arrays-weighted":
        return {"x": x, "y": y, "batch_size": BATCH, "class_weight": {i: 1.0 + i for i in range(10)}}
    if data == "numbered":
        return {"x": Numbered(x, y), "shuffle": True}
    if data == "numbered-workers":
        return {"x": Numbered(x, y, workers=2), "shuffle": True}
    if data == "numbered-own-order":
        return {"x": OwnOrder(x, y), "shuffle": False}
    if data == "numbered-unstorable":
        return {"x": Unstorable(x, y), "shuffle": True}
    if data == "numbered-unreadable":
        return {"x": Unreadable(x, y), "shuffle": True}
    if data == "numbered-augmented":
        return {"x": Augmented(x, y), "shuffle": True}
    if data == "generator":
        return {"x": _endless(x, y), "steps_per_epoch": 10}
    if data == "loader":
        import torch

        torch.manual_seed(3)
        tensors = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        return {"x": torch.utils.data.DataLoader(tensors, batch_size=BATCH, shuffle=True)}
    import tensorflow as tf

    plain = tf.data.Dataset.from_tensor_slices((x, y))
    if data == "dataset":
        return {"x": plain.shuffle(32, seed=3).batch(BATCH).prefetch(2)}
    if data == "dataset-repeat":
        return {"x": plain.shuffle(32, seed=3).repeat().batch(BATCH).prefetch(2), "steps_per_epoch": 10}
    if data == "dataset-twice":
        return {"x": plain.shuffle(32, seed=3).repeat(2).batch(BATCH).prefetch(2)}
    if data == "dataset-python":  # has no checkpoint of its own
        spec = (tf.TensorSpec((8, 8, 1), tf.float32), tf.TensorSpec((), tf.int64))
        rows = tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec)
        return {"x": rows.shuffle(32, seed=3).batch(BATCH)}
    raise ValueError(data)


def passes_over_changed_arrays() -> dict[str, list[float]]:
    """Return the sums of the batches of two passes over arrays that the script has changed in between, in place."""
    from tranlogs_keras.backends import make_backend
    from tranlogs_keras.loop.data_place import LoopData, make_loop_source

    x, y = np.arange(12.0, dtype="float32").reshape(6, 2), np.zeros(6, "float32")
    source = make_loop_source(LoopData((x, y), 2, True, is_stateless=False), make_backend(), 7, lambda *_: None)
    found = {}
    for i, name in enumerate(("as given", "changed")):
        found[name] = [float(np.sum(keras.ops.convert_to_numpy(batch[0]))) for batch in source.open(i, 0)]
        x += 100.0
    return found


def _endless(x: Any, y: Any) -> Any:
    while True:
        at = np.random.randint(0, len(x), BATCH)
        yield x[at], y[at]
