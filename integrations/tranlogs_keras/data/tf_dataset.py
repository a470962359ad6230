"""tf.data pipelines: TensorFlow's own checkpoints of an iterator, and skipping where these do not suffice.

All iterators of a dataset share the seed generator of its shuffle. A checkpoint of an iterator contains the generator,
unless prefetching has drained the pass: inputs that are exhausted are not saved. Three kinds of pipelines follow:

- An endless pipeline is never drained. Its checkpoint alone is exact.
- A pipeline that ends and repeats nothing draws from the generator once a pass. The state at the beginning of the pass is
  read into a second iterator, which is thrown away: it sets the generator, and nothing else.
- A pipeline that ends and repeats a part draws from the generator in the middle of the pass. The state at the beginning of
  the pass is read, and the batches up to the position are drawn again.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tranlogs.base.errors import UsageError

from .source import Source
from .tf_pipeline import is_endless, repeats

_log = logging.getLogger("tranlogs")

_NBYTES_MAX = 256 << 20  # a larger state (shuffle buffers of images) is not kept: skipping is cheaper than writing it

Blob = dict[str, Any]  # files of a tf.train.Checkpoint


class TFDatasetBatches(Source):
    """Source of the batches of a `tf.data.Dataset`."""

    def __init__(self, epoch_iterator: Any) -> None:
        self._iterator = epoch_iterator
        self._is_endless, self._redraws = _kind_of(epoch_iterator._get_iterator)
        self._batches: Any = None
        self._begun: Blob | None = None  # of the present pass
        self._opened = 0  # iterators of this dataset that were opened over the whole run
        self._is_storable = True
        self._kept: tuple[Blob, int] | None = None  # a checkpoint's: the state, and the batches taken until then
        self._here = 0  # iterators opened in this process

    def open(self, passes: int, seen: int) -> Any:
        kept, self._kept = self._kept, None
        if not seen or (self._begun is None and kept is None):
            return self._opened_anew(seen)
        dataset = self._iterator._get_iterator()
        self._batches = iter(dataset)
        if self._redraws and self._begun is not None:
            kept = None
        blob, taken = kept or (self._begun, 0)
        taken = min(taken, seen)
        assert blob is not None
        _read(self._batches, blob)
        if kept is not None and self._begun is not None and not self._is_endless:
            _read(iter(dataset), self._begun)
        self._here = self._opened
        _skip(self._batches, seen - taken)
        return self._batches

    def _opened_anew(self, seen: int) -> Any:
        """An iterator that shuffles as the next one of an uninterrupted run would."""
        dataset = self._iterator._get_iterator()
        wanted = self._opened - (1 if seen else 0)
        while self._here < wanted:  # each one opened moves the order of a reshuffling dataset on
            iter(dataset)
            self._here += 1
        self._batches = iter(dataset)
        self._here += 1
        self._opened = self._here
        if seen:
            _skip(self._batches, seen)
        else:
            self._begun = self._stored()
        return self._batches

    def open_spare(self) -> None:
        iter(self._iterator._get_iterator())
        self._here += 1
        self._opened += 1

    def close(self) -> None:
        self._batches = None

    def read_parts(self, rng_now: dict[str, Any]) -> dict[str, Any]:
        return {"opened": self._opened, "begun": self._begun}

    def write(self, state: dict[str, Any]) -> None:
        self._opened, self._begun = state["opened"], state["begun"]

    def read_for_checkpoint(self) -> dict[str, Any]:
        return {"iterator": self._stored()}

    def write_from_checkpoint(self, state: dict[str, Any], seen: int) -> None:
        blob = state.get("iterator")
        self._kept = None if blob is None else (blob, seen)

    def _stored(self) -> Blob | None:
        if self._batches is None or not self._is_storable:
            return None
        try:
            with tempfile.TemporaryDirectory() as folder:
                tf.train.Checkpoint(it=self._batches).write(f"{folder}/it")
                files = list(Path(folder).iterdir())
                if sum(file.stat().st_size for file in files) > _NBYTES_MAX:
                    return None
                return {file.name: np.frombuffer(file.read_bytes(), np.uint8) for file in files}
        except OSError as error:  # no room for it, or no folder for temporary files
            _log.debug("the dataset's iterator could not be stored: %s", error)
        except (tf.errors.OpError, ValueError, NotImplementedError, AttributeError):
            self._is_storable = False  # stateful functions, generators, replicas: skip from the beginning of the pass
        return None


def _kind_of(get: Any) -> tuple[bool, bool]:
    """Return whether the dataset is endless, and whether it ends and repeats a part."""
    try:
        dataset = get()
        ends = not is_endless(dataset)
        return not ends, ends and repeats(dataset)
    except Exception as error:  # a distributed dataset, or another inside of TensorFlow
        _log.debug("the dataset could not be looked into: %s", error)
        return False, False


def _read(iterator: Any, blob: Blob) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in blob.items():
            Path(folder, name).write_bytes(content.tobytes())
        tf.train.Checkpoint(it=iterator).read(f"{folder}/it")


def _skip(iterator: Any, count: int) -> None:
    for taken in range(count):
        try:
            next(iterator)
        except (StopIteration, tf.errors.OutOfRangeError):
            raise UsageError(f"the dataset ended after {taken} of the {count} batches that the run had taken") from None
