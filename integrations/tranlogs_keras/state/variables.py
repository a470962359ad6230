"""The variables of a run under names that hold from one process to the next, and what each of them is to a step.

Keras numbers what the user does not name (`dense_3/kernel`), process by process. Names in the log are the paths of the
process that began the run; a later process is matched by order, with shapes and dtypes compared, and paths compared but
for such numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, NamedTuple, TypeVar

from tranlogs.base.types import AnyArray, Array

from .. import keras_internals
from ..backends import Backend
from ..backends.arrays import Values, flat_bytes

_NUMBER = re.compile(r"_\d+(?=$|/|_)")


@dataclass(frozen=True, slots=True)
class Slot:
    """One variable (under replicas: one component of one).

    Attributes:
        name: in the log.
        variable: the backend's or Keras's.
        dtype: as numpy calls it.
        shape: of the whole.
    """

    name: str
    variable: Any
    dtype: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """The first part of the name."""
        return self.name.partition("/")[0]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Variables:
    """All variables that a step can change, sorted by who changes them.

    Attributes:
        trained: updated by the optimizer; redo computes them.
        owned: the optimizer's own, likewise.
        others: variables of the model that it does not update.
        auxiliary: those of them that the forward pass writes (BatchNorm's statistics, seeds): in every boundary.
        metrics: running state of the epoch's metrics: in every boundary.
        optimizers: by the attribute of the model that holds them.
        version: how often they were looked for.
    """

    version = 0
    models: list[Any] | None = None  # of a loop of one's own; `model` stands for them

    def __init__(self, model: Any, backend: Backend, *, is_whole: bool) -> None:
        """`is_whole`: after-images are logged, so that every variable is the log's own business."""
        self.model, self.backend, self.is_whole = model, backend, is_whole
        self.optimizers: dict[str, Any] = {}
        self.trained: list[Slot] = []
        self._recorded: dict[str, str] = {}  # names of the process that began the run
        self.refresh()

    def refresh(self) -> None:
        """Look up the variables again: an optimizer may have been built since."""
        model = self.model
        self.version += 1
        self.optimizers = self._find_optimizers()
        trained = self._find_trained()
        ids = set(map(id, trained))
        states = keras_internals.recurrent_states(model)
        rest = [v for v in unique([*model.variables, *states]) if id(v) not in ids]
        own = set() if self.is_whole else keras_internals.own_non_trainable(model) | set(map(id, states))
        names = _Names()
        self.trained = list(self._slots("param", trained, names))
        self.others = [slot for v in rest for slot in self._slots("param", [v], names)]
        own = {id(part) for v in rest if id(v) in own for part in self.backend.parts_of(v)}
        self.auxiliary = [slot for slot in self.others if id(slot.variable) in own]
        self.owned = [
            slot
            for which, optimizer in self.optimizers.items()
            for slot in self._slots(f"optimizer/{which}", optimizer.variables, names)
        ]
        known = {id(slot.variable) for slot in self.everything_but_metrics}
        metrics = [v for v in model.metrics_variables if id(v) not in known]
        self.metrics = list(self._slots("metric", unique(metrics), names))
        self._count = self._counted()

    def _find_optimizers(self) -> dict[str, Any]:
        return optimizers_of(self.model)

    def _find_trained(self) -> list[Any]:
        return keras_internals.trained_by(self.model.optimizer)

    def trained_of(self, which: str) -> list[Slot]:
        """Return what one optimizer updates, in the order of the gradients that it takes."""
        return self.trained

    def _slots(self, prefix: str, variables: Iterable[Any], names: _Names) -> Iterator[Slot]:
        for variable in variables:
            name = names.unique(f"{prefix}/{variable.path}")
            parts = self.backend.parts_of(variable)
            for i, part in enumerate(parts):
                own = name if len(parts) == 1 else f"{name}@{i}"
                yield Slot(self._recorded.get(own, own), part, _dtype(variable), tuple(variable.shape))

    def rename(self, recorded: dict[str, str]) -> None:
        """Call variables as the run does, by the names that they have now."""
        before = {name: own for own, name in self._recorded.items()}
        self._recorded |= {before.get(name, name): wanted for name, wanted in recorded.items() if name != wanted}
        self.refresh()

    def changed_by(self, record: str) -> list[Slot]:
        """Return the variables that steps of a kind of record change: those that are fingerprinted come first."""
        if record == "weights":
            return self.everything_but_metrics
        first = self.fingerprinted_by(record)
        known = {id(slot) for slot in first}
        return [*first, *(slot for slot in self.owned if id(slot) not in known)]

    def fingerprinted_by(self, record: str) -> list[Slot]:
        """Return the variables that are fingerprinted after a step.

        Of a step that is redone, these are the trained ones, what shows in them late (averages, accumulated gradients), and
        single numbers such as the loss scale. The moments are left out: a wrong one shows in the weights of the next step.
        """
        if record == "weights":
            return self.everything_but_metrics
        return [*self.trained, *(slot for slot in self.owned if slot.size <= 1 or keras_internals.shows_late(slot.name))]

    def watched_by(self, record: str) -> list[Slot]:
        """Return variables that a callback may write and no boundary holds: those that steps change, then frozen weights."""
        if record == "weights":
            return self.everything_but_metrics
        known = {id(slot) for slot in self.auxiliary}
        return [*self.changed_by(record), *(slot for slot in self.others if id(slot) not in known)]

    @property
    def everything_but_metrics(self) -> list[Slot]:
        """The variables that a checkpoint holds as tensors."""
        return [*self.trained, *self.others, *self.owned]

    @property
    def by_name(self) -> dict[str, Slot]:
        """All variables by name."""
        return {slot.name: slot for slot in [*self.everything_but_metrics, *self.metrics]}

    def has_grown(self) -> bool:
        """Return True if there are more variables than at the last look."""
        return self._count != self._counted()

    def _counted(self) -> tuple[int, ...]:
        return (
            len(self.model.variables),
            len(self.model.metrics_variables),
            *(len(o.variables) for o in self.optimizers.values()),
        )


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return the optimizers that a model holds, by attribute: one, or in a custom `train_step` several."""
    found = {} if model.optimizer is None else {"optimizer": model.optimizer}
    for name, value in vars(model).items():
        several = isinstance(value, (list, tuple, dict))
        items = value.items() if isinstance(value, dict) else enumerate(value) if several else [("", value)]
        for key, item in items:
            if isinstance(item, keras_internals.BaseOptimizer) and all(item is not other for other in found.values()):
                found[name.lstrip("_") + (f".{key}" if several else "")] = item
    return found


Made = TypeVar("Made")


class _Kept:
    """What was made for a model. Neither Keras, which looks for layers, nor looks at plain values of the script enter it."""

    def __init__(self, parts: list[Any], made: Any) -> None:
        self.parts, self.made = parts, made


def kept_with(model: Any, name: str, parts: list[Any], make: Callable[[], Made]) -> Made:
    """Return what was made for a model with these parts, and make it if one of them is another object.

    It is kept as an attribute of the model, which ends with it. The parts are kept, so that no other object gets their ids.
    """
    known = vars(model).get(name)
    if known is None or len(known.parts) != len(parts) or not all(map(is_, known.parts, parts)):
        known = vars(model)[name] = _Kept(parts, make())
    made: Made = known.made
    return made


def is_same_name(a: str, b: str) -> bool:
    """Return True if two names differ only in what Keras adds to names that the user does not choose.

    That is numbers, and the name of the model around a layer: a Sequential model that was loaded from a file has it not.
    """
    if a == b:
        return True
    a, b = without_numbers(a), without_numbers(b)
    short, long = sorted((a, b), key=len)
    kind, _, rest = short.partition("/")
    head, _, last = rest.rpartition("/") if kind == "optimizer" else ("", "", rest)
    start = f"{kind}/{head}/" if head else f"{kind}/"
    return a == b or (long.startswith(start) and long.endswith((f"/{last}", f"_{last}")))


def without_numbers(name: Any) -> Any:
    """Return a name without the numbers that Keras adds; return anything else unchanged."""
    return _NUMBER.sub("", name) if isinstance(name, str) else name


def matched(recorded: Sequence[tuple[str, str, Sequence[int]]], slots: Sequence[Slot]) -> tuple[dict[str, Slot], list[str]]:
    """Match recorded names to variables, by order within a kind; return the matches and the differences, one sentence each."""
    found: dict[str, Slot] = {}
    differences: list[str] = []
    for kind in dict.fromkeys([name.partition("/")[0] for name, _, _ in recorded] + [slot.kind for slot in slots]):
        theirs = [item for item in recorded if item[0].startswith(kind + "/")]
        mine = [slot for slot in slots if slot.kind == kind]
        place = {name: i for i, (name, _, _) in enumerate(theirs)}
        if place.keys() == {slot.name for slot in mine}:
            mine.sort(key=lambda slot: place[slot.name])
        for (name, dtype, shape), slot in zip(theirs, mine):
            found[name] = slot
            if not is_same_name(name, slot.name):
                differences.append(f"{kind} {name}: recorded, but in its place there is {slot.name} now")
            elif (dtype, tuple(shape)) != (slot.dtype, slot.shape):
                differences.append(f"{kind} {name}: recorded as {dtype}{list(shape)}, now {slot.dtype}{list(slot.shape)}")
        differences += [f"{kind} {name}: recorded, but not there now" for name, _, _ in theirs[len(mine) :]]
        differences += [f"{kind} {slot.name}: there now, but not recorded" for slot in mine[len(theirs) :]]
    return found, differences


def _dtype(variable: Any) -> str:
    dtype = variable.dtype
    return str(getattr(dtype, "name", dtype))


def unique(variables: Iterable[Any]) -> list[Any]:
    return list({id(v): v for v in variables}.values())


class _Names:
    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def unique(self, name: str) -> str:
        count = self._seen[name] = self._seen.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"


class Look(NamedTuple):
    """Values of variables at a boundary.

    Attributes:
        watched: of what callbacks may write; None where writes are noticed otherwise.
        auxiliary: of what the forward pass writes, by name.
        metrics: of the running metrics, by name.
        seed: of Keras's global seed generator, if there is one.
    """

    watched: Sequence[Values] | None
    auxiliary: Mapping[str, AnyArray]
    metrics: Mapping[str, AnyArray]
    seed: Values | None


class Plan:
    """The variables of a model that steps and boundaries read.

    Attributes:
        updated: what steps change.
        updated_variables: their variables.
        watched: what callbacks may write and no boundary holds; `updated` comes first.
        watched_variables: their variables.
        kept: variables that only boundaries hold.
        fingerprinted: how many of `updated`, from the first, are fingerprinted.
        reads: `updated_variables`, then `kept`.
        rates: where in `updated` the learning rates are that are plain numbers.
    """

    def __init__(self, variables: Variables, record: str) -> None:
        self._version, self._record, self._seed = variables.version, record, keras_internals.global_seed_state()
        self.updated = list(variables.changed_by(record))
        self.updated_variables = [slot.variable for slot in self.updated]
        self.fingerprinted = len(variables.fingerprinted_by(record))
        self.watched = list(variables.watched_by(record))
        self.watched_variables = [slot.variable for slot in self.watched]
        self._auxiliary, self._metrics = list(variables.auxiliary), list(variables.metrics)
        self.kept = [slot.variable for slot in [*variables.auxiliary, *variables.metrics]]
        self.kept += [] if self._seed is None else [self._seed]
        self.reads = [*self.updated_variables, *self.kept]
        places = {id(variable): i for i, variable in enumerate(self.updated_variables)}
        rates = [keras_internals.learning_rate_of(optimizer) for optimizer in variables.optimizers.values()]
        self.rates = [places[id(rate)] for rate in rates if id(rate) in places]

    def is_of(self, variables: Variables, record: str) -> bool:
        """Return True if the plan is still valid for these variables."""
        return (
            self._version == variables.version and self._record == record and self._seed is keras_internals.global_seed_state()
        )

    def look_of(self, kept: Sequence[Values], watched: Sequence[Values] | None = None) -> Look:
        """Return values under their names. `kept` holds those of the variables in the attribute `kept`."""
        left: Iterator[Values] = iter(kept)
        auxiliary = {slot.name: _array(slot, next(left)) for slot in self._auxiliary}
        metrics = {slot.name: _array(slot, next(left)) for slot in self._metrics}
        return Look(watched, auxiliary, metrics, next(left, None))


def _array(slot: Slot, values: Values) -> Array:
    return Array(slot.dtype, values.shape, flat_bytes(values))
