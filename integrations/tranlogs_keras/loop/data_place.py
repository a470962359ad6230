"""The place of a loop in its data: position, source of the batches, and what is known of where they come from."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from tranlogs.base.errors import UsageError
from tranlogs.base.notes import Note
from tranlogs.training import UNKNOWN_DATA, LiveReport, LoopRecord, LoopSequence, Parts, TurnData

from .. import keras_internals
from ..backends import Backend
from ..data.cursor import Position
from ..data.given_data import check_kind, describe_data, make_source, other_data
from ..data.source import Source


class LoopData:
    """Stand-in for Keras's epoch iterator.

    `is_stateless` declares that a pass depends on nothing but the global random generators.

    Attributes:
        given: the data as the script gave them.
        is_of_script: whether they are an iterable whose state is known to the script alone.
        data_adapter: Keras's adapter, or a plain one where Keras needs none.
        steps_per_epoch: None.
    """

    steps_per_epoch = None

    def __init__(self, data: Any, batch_size: int | None, shuffle: bool, *, is_stateless: bool) -> None:
        self.given, self.is_stateless = data, is_stateless
        self.data_adapter = _adapter(data, batch_size, shuffle)
        self.is_of_script = isinstance(self.data_adapter, _PlainAdapter) and not isinstance(data, (list, tuple))

    def _get_iterator(self) -> Any:
        adapter = self.data_adapter
        if isinstance(adapter, keras_internals.PyDatasetAdapter):
            return _numbered(adapter.py_dataset)
        return self.given() if inspect.isfunction(self.given) else self.given


class _PlainAdapter:
    """Any other iterable of batches."""

    def __init__(self, data: Any) -> None:
        self.num_batches = len(data) if hasattr(data, "__len__") else None


def _adapter(data: Any, batch_size: int | None, shuffle: bool) -> Any:
    torch = sys.modules.get("torch")
    if isinstance(data, keras.utils.PyDataset):
        return keras_internals.PyDatasetAdapter(data, class_weight=None, shuffle=False)
    if torch is not None and isinstance(data, torch.utils.data.DataLoader):
        return keras_internals.TorchDataLoaderAdapter(data)
    if _is_arrays(data):
        if batch_size is None:
            raise UsageError("batches() of arrays needs batch_size=...")
        parts = data if isinstance(data, tuple) else (data,)
        return keras_internals.ArrayDataAdapter(
            parts[0], y=parts[1] if len(parts) > 1 else None, batch_size=batch_size, shuffle=shuffle
        )
    if batch_size is not None:
        raise UsageError(f"batch_size is for arrays; a {type(data).__name__} has batches of its own")
    kinds = {kind.__module__.partition(".")[0] for kind in type(data).__mro__}
    if "tensorflow" in kinds and hasattr(data, "element_spec") and keras.backend.backend() == "tensorflow":
        return keras_internals.TFDatasetAdapter(data)
    if inspect.isfunction(data) or (hasattr(data, "__iter__") and not isinstance(data, Iterator)):
        return _PlainAdapter(data)
    raise UsageError(
        f"batches() takes a tf.data.Dataset, a DataLoader, a PyDataset, a tuple of arrays with batch_size=..., an iterable, or "
        f"a function that returns a generator, not a {type(data).__name__}: it has to begin anew for each epoch"
    )


def _is_arrays(data: Any) -> bool:
    parts = data if isinstance(data, tuple) else (data,)
    return 0 < len(parts) <= 2 and all(hasattr(part, "shape") and hasattr(part, "dtype") for part in parts)


def _numbered(dataset: Any) -> Iterator[Any]:
    count = dataset.num_batches
    index = 0
    while count is None or index < count:
        yield dataset[index]
        index += 1


UNKNOWN_ITERABLE = Note(
    "unknown-data",
    "the data are an iterable of the script's own: what it draws from besides the global random generators, and what it keeps "
    "from one pass to the next, would not come back",
    "Give a tf.data.Dataset, a DataLoader, a PyDataset, arrays or a list of batches; or declare by stateless=True that a pass "
    "depends on nothing but the global random generators",
)


class DataPlace:
    """The place of a run's loop.

    Attributes:
        sequence: the loops that the script has entered.
        position: where the loop stands.
        source: of the batches; None before the first loop over data.
        turns: what the data of the running loop come from, if it is one over `steps()` or over an iterable of the script's own.
        seed: of the order of batches.
        was_set_back: whether the state was set back in the running loop, and its source of batches is to be opened again.
        is_undeclared: whether the run had a loop before the crash of which it did not know the data.
        unmade: the boundary with the state of a source that is not made yet.
    """

    def __init__(self, report: LiveReport) -> None:
        self._report = report
        self.sequence = LoopSequence()
        self.position = Position()
        self.source: Source | None = None
        self.turns: TurnData | None = None
        self.seed = 0
        self.was_set_back = self.is_undeclared = False
        self.unmade: Mapping[str, Any] | None = None
        self._data: dict[str, Any] | None = None
        self._given: list[Any] = []  # the data of the loops until now
        self._loop: tuple[LoopRecord, dict[str, Any]] = LoopRecord(), {}  # as the last boundary has it

    def land(self, body: Mapping[str, Any]) -> None:
        """Take over the place at which the run stood."""
        self.position = Position(**body["position"])
        self.sequence.land(body["loop"])
        if body.get("turns") == "unknown":
            self.is_undeclared = True
            self._report.warn(UNKNOWN_DATA if body["data"] is None else UNKNOWN_ITERABLE, False)

    def note_data(self, data: LoopData | None) -> None:
        """Note the data of a loop that begins. Other data than those of the loop before have a source of their own.

        Raises:
            UsageError: an earlier loop took them, and the one before took others.
        """
        if data is None:
            return
        given, has_former = data.given, bool(self._given)
        if not has_former or not _is_same(self._given[-1], given):
            if any(_is_same(one, given) for one in self._given):
                raise UsageError(
                    "a loop takes data that an earlier loop had taken, and loops between them took others. The run keeps the "
                    "place in one data set at a time. Make the data anew for this loop, as another object"
                )
            self._given.append(given)
            if has_former:
                self.source = self._data = self.unmade = None
                if self.sequence.is_new:
                    self.position.passes = 0

    def take_data(self, data: LoopData, backend: Backend, recorded: dict[str, Any] | None, run: object) -> Source:
        """Return the source of the batches, and compare the data with those of the run.

        `recorded` is what the run has recorded of its data, if anything.

        Raises:
            UsageError: the run had data of another kind.
        """
        if self._data is not None and self.source is not None:
            return self.source
        self.source = source = make_source(data, backend, seed=self.seed, doubt=self._report.warn, reads_ahead=False)
        self._data = now = describe_data(data.data_adapter, source)
        if recorded is not None:
            check_kind(run, recorded, now, "Give the loop the same kind of data as the run had")
            for text in other_data(recorded, now):
                self._report.warn(Note("data-changed", text), True)
        return source

    def note_turns(self, *, stateless: bool, reason: Note) -> bool:
        """Note whether the loop declares that its data depend on nothing but the global random generators.

        `reason` says why they may not come back without it.

        Returns:
            True if the report no longer holds the reason, and is to be made anew.
        """
        self.turns = "stateless" if stateless else "unknown"
        is_reported = reason in self._report.notes
        if not stateless and not is_reported:
            self._report.warn(reason, False)
        if not (stateless and is_reported and self.is_undeclared):
            return False
        self._report.dismiss(reason)
        return True

    def set_source(self, body: Mapping[str, Any], kept: dict[str, Any], taken: Mapping[str, Any]) -> bool:
        """Set the source to a boundary's; return False if there is none.

        `kept` is what the checkpoint before it holds of the source, and `taken` the position at that checkpoint.
        """
        if self.source is None or not body["source"]:
            return False
        self.source.write(body["source"])
        if taken["passes"] == self.position.passes:
            self.source.write_from_checkpoint(kept, taken["seen"])
        return True

    def read(self, rng_now: dict[str, Any], parts: Parts) -> dict[str, Any]:
        """Return what a boundary holds of the place."""
        return {
            "position": self.position.as_dict(),
            "loop": parts.of("loop", self._read_loop()),
            "seed": parts.of("seed", self.seed),
            "data": parts.of("data", self._data),
            "source": parts.of("source", (self.source.read(rng_now) or None) if self.source is not None else None),
            "turns": self.turns,
        }

    def _read_loop(self) -> dict[str, Any]:
        now = self.sequence.read()
        if now is not self._loop[0]:
            self._loop = now, now.as_body()
        return self._loop[1]

    def read_for_checkpoint(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the source in addition."""
        return self.source.read_for_checkpoint() if self.source is not None else {}


def _is_same(some: Any, other: Any) -> bool:
    """Return True if data are the same object, or tuples of the same arrays."""
    if isinstance(some, tuple) and isinstance(other, tuple) and len(some) == len(other):
        return all(a is b for a, b in zip(some, other, strict=True))
    return some is other
