"""Lists of the variables that steps and boundaries read, valid as long as the model's variables stay the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tranlogs.base.types import AnyArray, Array

from .. import keras_internals
from ..backends.arrays import Values, flat_bytes
from .variables import Slot, Variables


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

    Args:
        variables: of the run.
        record: the kind of record that steps are logged as.

    Attributes:
        updated: what steps change.
        updated_variables: their variables.
        watched: what callbacks may write and no boundary holds; `updated` comes first.
        watched_variables: their variables.
        kept: variables that only boundaries hold.
        reads: `updated_variables`, then `kept`.
        rates: where in `updated` the learning rates are that are plain numbers.
    """

    def __init__(self, variables: Variables, record: str) -> None:
        self._version, self._record, self._seed = variables.version, record, keras_internals.global_seed_state()
        self.updated = list(variables.changed_by(record))
        self.updated_variables = [slot.variable for slot in self.updated]
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
