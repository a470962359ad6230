"""tf.data pipelines: TensorFlow's own checkpoints of an iterator, and skipping where it has none.

All iterators of a dataset share the seed generators of its shuffles, and reading a checkpoint of one iterator sets them. A
checkpoint taken when prefetching has drained its input lacks them, since TensorFlow does not save exhausted inputs, and the
next pass would have another order. What is done about that depends on the pipeline:

- It is endless: a checkpoint has it all, unless a stage below the `repeat` was just exhausted (the last batch is not full, and
  prefetching has come to the end of a repetition). Such a checkpoint is not kept, and a resume from there skips.
- A shuffle lies below a finite `repeat`: the generator moves within the pass, too. The pass is drawn again from its beginning.
- A shuffle lies above another one: a checkpoint keeps the generator of one of them. All iterators of the run are opened again.
- Else the state at the beginning of the pass has the generator: it is read into an iterator that is thrown away, at last.

On PyTorch and JAX, Keras opens an iterator of the dataset when its first batch is asked for; these are opened again, too.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note

from ..backends import Backend
from ..backends.backend import Doubt
from ..backends.tensorflow_updates import RANDOM_OPERATIONS, operations_of
from .source import Consumed, Source

_log = logging.getLogger("tranlogs")
_NBYTES_MAX = 256 << 20  # a larger state (shuffle buffers of images) is not kept: skipping is cheaper than writing it
_ORDER = b"epoch_num_random_samples"  # what TensorFlow calls the place of a shuffle's seed generator


_READ, _SPARE = "r", "s"


Blob = dict[str, Any]  # files of a tf.train.Checkpoint
_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_WRITES = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "RngReadAndSkip"}

_VARIABLES = Note(
    "not-recovered",
    "a map of the dataset writes variables, such as the seed of a Keras layer that augments: they are not brought back, and a "
    "resume in the middle of an epoch sees other batches",
    "Augment inside the model, or with stateless operations",
)

_CALLS = Note(
    "not-recovered",
    "a map of the dataset calls Python: if that draws random numbers, they are not brought back",
    "Use stateless operations of TensorFlow",
)

_PARALLEL = Note(
    "not-recovered",
    "a map of the dataset draws random numbers in parallel (num_parallel_calls), which TensorFlow itself does not repeat from "
    "one run to the next",
    "Leave num_parallel_calls out, or use stateless operations",
)

_UNSEEDED = Note(
    "not-recovered",
    "a shuffle of the dataset has no seed, so that each start of the script has another order",
    "Call keras.utils.set_random_seed(...) before the dataset is made, or give shuffle(..., seed=...)",
)

_UNORDERED = Note(
    "not-recovered",
    "the dataset gives its elements in the order in which threads finish (deterministic=False), which no log can repeat",
    "Leave the option out",
)


class TFDatasetBatches(Source):
    """Batches of a tf.data pipeline."""

    def __init__(self, epoch_iterator: Any, stages: Stages) -> None:
        self._iterator, self._stages = epoch_iterator, stages
        self._batches: Any = None
        self._begun: Blob | None = None  # of the present pass
        self._openings = ""  # the iterators that were opened over the whole run, see `_open_again`
        self._is_storable = stages.is_endless or not stages.stacks_shuffles
        self._kept: tuple[Blob, int] | None = None  # a checkpoint's: the state, and the batches taken until then
        self._here = 0  # iterators opened in this process

    def open(self, passes: int, seen: int) -> Any:
        kept, self._kept = self._kept, None
        if not seen or (self._begun is None and kept is None):
            return self._opened_anew(seen)
        dataset = self._iterator._get_iterator()
        stages = self._stages
        if stages.repeats_shuffle and not (stages.is_endless or stages.stacks_shuffles) and self._begun is not None:
            kept = None
        self._batches = iter(dataset)
        blob, taken = kept or (self._begun, 0)
        taken = min(taken, seen)
        assert blob is not None
        _read(self._batches, blob)
        if kept is not None and self._begun is not None and not stages.is_endless:
            _read(iter(dataset), self._begun)
        self._here = len(self._openings)
        _skip(self._batches, seen - taken)
        return self._batches

    def _opened_anew(self, seen: int) -> Any:
        """Return an iterator that shuffles like the next one of an uninterrupted run."""
        dataset = self._iterator._get_iterator()
        wanted = self._openings[:-1] if seen else self._openings
        _open_again(dataset, wanted[self._here :], self._stages)
        self._batches = iter(dataset)
        self._openings = wanted + _READ
        self._here = len(self._openings)
        if seen:
            _skip(self._batches, seen)
        else:
            self._begun = self._stored()
        return self._batches

    def open_spare(self) -> None:
        iter(self._iterator._get_iterator())
        self._openings += _SPARE
        self._here += 1

    def close(self) -> None:
        self._batches = None

    def read_parts(self, rng_now: dict[str, Any]) -> dict[str, Any]:
        return {"openings": self._openings, "begun": self._begun}

    def write(self, state: dict[str, Any]) -> None:
        self._openings, self._begun = state["openings"], state["begun"]

    def pass_over(self, state: dict[str, Any]) -> None:
        _open_again(self._iterator._get_iterator(), state["openings"], self._stages)

    def read_for_checkpoint(self) -> dict[str, Any]:
        blob = self._stored()
        if blob is not None and self._begun is not None and self._stages.is_endless:
            blob = blob if _count_orders(blob) >= _count_orders(self._begun) else None
        return {"iterator": blob}

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


class TFDatasetConsumed(Consumed):
    """Batches of a tf.data pipeline on another backend, drawn from the beginning of the pass."""

    def __init__(self, epoch_iterator: Any, backend: Backend, doubt: Doubt, stages: Stages, *, reads_ahead: bool) -> None:
        super().__init__(epoch_iterator, backend, doubt, reads_ahead=reads_ahead)
        self._dataset, self._stages = epoch_iterator.data_adapter._dataset, stages
        self._here = 0  # passes opened in this process, or opened again
        self._openings = ""  # of the whole run

    def open(self, passes: int, seen: int) -> Any:
        _open_again(self._dataset, _READ * (passes - self._here), self._stages)
        self._here, self._openings = passes + 1, _READ * (passes + 1)
        return super().open(passes, seen)

    def pass_over(self, state: dict[str, Any]) -> None:
        _open_again(self._dataset, state["openings"], self._stages)

    def read_parts(self, rng_now: dict[str, Any]) -> dict[str, Any]:
        return {**super().read_parts(rng_now), "openings": self._openings}


def _open_again(dataset: Any, openings: str, stages: Stages) -> None:
    """Open iterators as the run has opened them. Each of them moves the order of a dataset that shuffles anew each time.

    A shuffle below another stage that shuffles or repeats moves when it is read from.

    `openings` has an "r" for each iterator that was read, and an "s" for each that was spare.
    """
    for kind in openings:
        iterator = iter(dataset)
        if kind == _SPARE or not (stages.stacks_shuffles or stages.repeats_shuffle) or stages.is_endless:
            continue
        if not stages.repeats_shuffle:
            next(iterator, None)
            continue
        for _ in iterator:
            pass


def _count_orders(blob: Blob) -> int:
    """Return of how many shuffles a stored iterator has the seed generator."""
    return sum(content.tobytes().count(_ORDER) for content in blob.values())


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


def doubts_about(dataset: Any, stages: Stages) -> list[Note]:
    """Return what of a pipeline is not brought back; nothing for a dataset whose structure is not known."""
    facts = {
        _UNSEEDED: stages.has_unseeded_shuffle,
        _UNORDERED: stages.is_unordered,
    }
    found: dict[Note, None] = dict.fromkeys(note for note, holds in facts.items() if holds)
    try:
        for name, kinds in _functions(dataset):
            if kinds & _WRITES:
                found[_VARIABLES] = None
            if "Map" in name and "FlatMap" not in name and kinds & _PYTHON:  # a flat map: from_generator
                found[_CALLS] = None
            if "Parallel" in name and kinds & RANDOM_OPERATIONS:
                found[_PARALLEL] = None
    except Exception as error:  # TensorFlow's inside
        _log.debug("the dataset could not be looked into: %s", error)
    return list(found)


def _functions(dataset: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield the class of the dataset and the operations of each function in the pipeline."""
    for function in dataset._functions():
        yield type(dataset).__name__, operations_of(function.function.graph)
    for source in dataset._inputs():
        yield from _functions(source)


_GRAPH_BYTES_MAX = 64 << 20  # a graph contains the arrays of `from_tensor_slices`


@dataclass(frozen=True, slots=True)
class Stages:
    """Facts about a pipeline. A pipeline whose inside looks otherwise than expected has none of these properties.

    Attributes:
        is_endless: True if it is repeated without end.
        repeats_shuffle: True if a shuffle that reorders each time lies below a finite `repeat`.
        stacks_shuffles: True if a shuffle that reorders each time lies below another one.
        has_unseeded_shuffle: True if a shuffle takes its order from no seed.
        is_unordered: True if elements come in the order in which threads finish (`deterministic=False`).
    """

    is_endless: bool = False
    repeats_shuffle: bool = False
    stacks_shuffles: bool = False
    has_unseeded_shuffle: bool = False
    is_unordered: bool = False


def stages_of(dataset: Any) -> Stages:
    """Look into a dataset of tf.data."""
    try:
        return _stages_of(dataset)
    except Exception as error:  # TensorFlow's inside may change
        _log.debug("the stages of the dataset could not be read: %s", error)
        return Stages()


def _stages_of(dataset: Any) -> Stages:
    paths = list(_paths(dataset))
    stages = [stage for path in paths for stage in path]
    return Stages(
        is_endless=int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        or any(_is_repeat(stage) and int(stage._count) < 0 for stage in stages),
        repeats_shuffle=any(
            _is_repeat(stage) and any(map(_reorders, path[place:])) for path in paths for place, stage in enumerate(path)
        ),
        stacks_shuffles=any(sum(map(_reorders, path)) > 1 for path in paths),
        has_unseeded_shuffle=any(_is_shuffle(stage) and not (int(stage._seed) or int(stage._seed2)) for stage in stages),
        is_unordered=_is_unordered(dataset, stages),
    )


def _paths(dataset: Any) -> Iterator[list[Any]]:
    """Yield the stages from the last one to each of the sources."""
    sources = dataset._inputs()
    if not sources:
        yield [dataset]
    for source in sources:
        for path in _paths(source):
            yield [dataset, *path]


def _is_shuffle(stage: Any) -> bool:
    return type(stage).__name__ == "_ShuffleDataset"


def _reorders(stage: Any) -> bool:
    return _is_shuffle(stage) and stage._reshuffle_each_iteration is not False


def _is_repeat(stage: Any) -> bool:
    return type(stage).__name__ == "_RepeatDataset"


def _is_unordered(dataset: Any, stages: list[Any]) -> bool:
    if dataset.options().deterministic is False:
        return True
    kinds = {type(stage).__name__ for stage in stages}
    if any(getattr(stage, "_deterministic", None) == "false" for stage in stages):
        return True
    if "_ParallelInterleaveDataset" not in kinds:  # it alone keeps the setting where only its graph has it
        return False
    held = [tensor for stage in stages for tensor in getattr(stage, "_tensors", None) or ()]
    if sum(tensor.dtype.size * int(tf.size(tensor)) for tensor in held) > _GRAPH_BYTES_MAX:
        return False
    raw = tf.raw_ops.DatasetToGraphV2(
        input_dataset=dataset._variant_tensor, external_state_policy=1, strip_device_assignment=True
    )
    graph = tf.compat.v1.GraphDef.FromString(raw.numpy())
    return any(node.attr["deterministic"].s == b"false" for node in graph.node if "deterministic" in node.attr)
