"""The state of a Keras run: described, put into a snapshot, restored from a checkpoint, and redone from the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import keras

from tranlogs.base.errors import CorruptRecord
from tranlogs.base.notes import Note, coded
from tranlogs.base.types import AnyArray
from tranlogs.records import Checkpoint, Record, Snapshot, array_of
from tranlogs.training import (
    Digests,
    Divergence,
    LoopRecord,
    Mode,
    StateDigests,
    decode_entries,
    digest_of,
    redo_in_order,
    window_of,
)
from tranlogs.training import Fingerprint as BaseFingerprint

from .. import keras_internals
from ..backends import Backend, Gradients
from ..backends.arrays import Values, flat_bytes, from_array, same_bits, to_array
from .description import compare_demanded, compare_optimizer_classes, describe_environment, describe_model, serialized
from .variables import Look, Plan, Variables, matched

LogKind = Literal["gradients", "weights", "inputs"]


class KerasState:
    """Variables of a model, of its optimizers and of its metrics, by name.

    Attributes:
        log: what steps are logged as.
        body: the body of the boundary that was landed on.
        optimizer_attributes: plain attributes of the optimizer that the log knows (an eager backend heeds them).
        fingerprint_kinds: the kinds that redo has compared.
        is_halved: steps are taken in two calls, since the update gives other bits in one call with its step.
    """

    def __init__(self, variables: Variables, backend: Backend, log: LogKind, fingerprint: Mode) -> None:
        self.variables, self.backend, self.log = variables, backend, log
        self.fingerprint = Fingerprint(fingerprint)
        self.fingerprint_kinds: set[str] = set()
        self.body: dict[str, Any] = {}
        self.kept: tuple[dict[str, Any], dict[str, Any]] = {}, {}  # a checkpoint's own share of the data, and its position
        self.optimizer_attributes: dict[str, Any] = {}
        self.is_halved = False
        self._plan: Plan | None = None
        self.environment: dict[str, Any] = {}  # what rounding depends on, as it is now
        self.splits = True  # steps into gradients and update
        self.recorded_environment: dict[str, Any] = {}
        self.about: dict[str, Any] = {}  # a checkpoint's description of the model
        self.recorded_about: dict[str, Any] = {}  # the same of the checkpoint that was restored
        self.notes: list[Note] = []
        self.overruled: set[str] = set()  # paths of settings of optimizers that the script gives otherwise, and the run's hold

    # Describing.

    def describe(self) -> None:
        """Describe model, optimizers and environment for checkpoints, as they are now."""
        self.optimizer_attributes = plain_attributes(self.variables.optimizers)
        self.about = describe_model(self.variables)
        self.describe_environment()

    def describe_environment(self) -> None:
        """Describe what rounding depends on, as it is now."""
        self.environment.update(describe_environment(self.variables.model, self.backend, self.variables.optimizers))

    def nbytes(self) -> int:
        """Return the approximate bytes of a checkpoint's tensors."""
        slots = self.variables.everything_but_metrics
        return sum(value.nbytes for value in self.backend.values_of([slot.variable for slot in slots]))

    @property
    def plan(self) -> Plan:
        """The variables that steps and boundaries read."""
        plan = self._plan
        if plan is None or not plan.is_of(self.variables, self.log):
            plan = self._plan = Plan(self.variables, self.log)
        return plan

    def look(self) -> Look:
        """Read the variables that a boundary needs, in one read."""
        plan = self.plan
        watched = plan.watched_variables if self.backend.watches_values else []
        read = self.backend.values_of([*watched, *plan.kept])
        return plan.look_of(read[len(watched) :], read[: len(watched)] if self.backend.watches_values else None)

    def snapshot(self, boundary: dict[str, Any], kept: dict[str, Any]) -> Snapshot:
        """Return all state, as views of live memory, with the boundary's body and the state of the data."""
        slots = self.variables.everything_but_metrics
        values = self.backend.values_of([slot.variable for slot in slots])
        tensors: dict[str, AnyArray] = {slot.name: to_array(value) for slot, value in zip(slots, values, strict=True)}
        listed = [(slot.name, slot.dtype, slot.shape) for slot in [*slots, *self.variables.metrics]]
        return Snapshot(
            tensors,
            {
                "variables": listed,
                "trained": [slot.name for slot in self.variables.trained],
                "log": self.log,
                "attributes": self.optimizer_attributes,
                "halved": self.is_halved,
                "splits": self.splits,
                "schedules": self.schedules(),
                "boundary": boundary,
                "kept": kept,
                **self.about,
            },
        )

    def is_as_in(self, checkpoint: Checkpoint) -> bool:
        """Return True if a checkpoint of this state would hold what the given one does, besides its boundary and its data."""
        meta, now = checkpoint.meta(make_array=from_array), self.snapshot({}, {})
        ignored = ("boundary", "kept", "halved")  # a record tells whether its step was halved
        return (
            checkpoint.manifest["environment"] == self.environment
            and all(meta.get(key) == value for key, value in now.meta.items() if key not in ignored)
            and all(same_bits(from_array(checkpoint.read(name)), from_array(value)) for name, value in now.tensors.items())
        )

    def schedules(self) -> dict[str, str]:
        """Return the learning-rate schedules as JSON, by optimizer."""
        found = {}
        for which, optimizer in self.variables.optimizers.items():
            schedule = keras_internals.learning_rate_of(optimizer)
            if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
                found[which] = serialized(schedule)
        return found

    # Recoverable.

    def redo(self, entries: Sequence[Record], tick: Callable[[int], None]) -> Divergence | None:
        """Apply records in order; return the first step after which the fingerprint differs."""
        return redo_in_order(_ByStep(self), decode_entries(self.decode, entries), tick)

    def apply(self, body: dict[str, Any], gradients: Gradients, reading: Sequence[Any]) -> Sequence[Values]:
        """Compute the update of a logged step; `body` is that of its record. Return values of variables after it."""
        return self.backend.apply(gradients, reading)

    def differences(self, checkpoint: Checkpoint) -> list[str]:
        meta = checkpoint.meta(make_array=from_array)
        _, unlike = matched(meta["variables"], [*self.variables.everything_but_metrics, *self.variables.metrics])
        recorded_environment = checkpoint.manifest["environment"]
        found = compare_optimizer_classes(recorded_environment, self.variables.optimizers)
        if meta["log"] == self.log == "gradients":
            found += compare_demanded(recorded_environment, self.environment)
        schedules = self.schedules()
        for which in sorted(meta["schedules"].keys() | schedules.keys()):
            was, now = (given.get(which, "a number") for given in (meta["schedules"], schedules))
            if was != now and (self.log == "gradients" or "a number" in (was, now)):
                found.append(f"model.{which}: its learning rate was {was}, now it is {now}; redoing steps needs the run's own")
        if found:  # the optimizer has other variables then, which need not be listed
            unlike = [text for text in unlike if not text.startswith("optimizer ")]
        return [*unlike, *found]

    def restore(self, checkpoint: Checkpoint) -> None:
        meta = checkpoint.meta(make_array=from_array)
        self.recorded_environment = checkpoint.manifest["environment"]
        self.recorded_about = {key: meta[key] for key in ("architecture", "optimizers")}
        self.fingerprint_kinds.clear()
        self.is_halved = meta["halved"]
        self.notes += coded("environment", self.backend.set_back(self.recorded_environment))
        slots, _ = matched(meta["variables"], [*self.variables.everything_but_metrics, *self.variables.metrics])
        self.variables.rename({slot.name: name for name, slot in slots.items()})
        for name, _, _ in meta["variables"]:
            if not name.startswith("metric/"):
                self.backend.assign(slots[name].variable, from_array(checkpoint.read(name)))
        now = plain_attributes(self.variables.optimizers)
        for path, value in meta["attributes"].items():
            if path in now and now[path] != value:
                name = f"model.{path.replace('/', '.')}"
                self.overruled.add(name)
                text = f"{name}: the script gives {now[path]!r}, the run has {value!r}, which holds"
                self.notes.append(Note("settings-changed", text))
        self.set_attributes(meta["attributes"])
        self.kept = meta["kept"], meta["boundary"]["position"]
        self.set_auxiliary(meta["boundary"])

    def restore_weights(self, checkpoint: Checkpoint, meta: dict[str, Any]) -> bool:
        """Give the model alone what a checkpoint has; False where that does not fit it."""
        recorded = [item for item in meta["variables"] if item[0].startswith("param/")]
        slots, unlike = matched(recorded, [*self.variables.trained, *self.variables.others])
        if unlike:
            return False
        written = meta["boundary"]["auxiliary"]
        for name, slot in slots.items():
            self.backend.assign(slot.variable, written[name] if name in written else from_array(checkpoint.read(name)))
        return True

    def set_attributes(self, attributes: dict[str, Any]) -> None:
        """Give the optimizers the run's plain attributes, before anything is traced."""
        self.optimizer_attributes = dict(attributes)
        for path, value in attributes.items():
            owner, _, name = path.rpartition("/")
            set_plain(self.variables.optimizers, owner, name, value)

    def set_auxiliary(self, body: dict[str, Any]) -> None:
        slots = self.variables.by_name
        for kind in ("auxiliary", "metrics"):
            for name, values in body[kind].items():
                if name in slots:
                    self.backend.assign(slots[name].variable, values)
        self.body = body

    def decode(self, entry: Record) -> Any:
        return entry.body(make_array=from_array)

    def decode_boundary(self, entry: Record) -> dict[str, Any]:
        return entry.boundary(make_array=from_array)


def plain_attributes(optimizers: dict[str, Any]) -> dict[str, Any]:
    """Numbers and switches that optimizers keep as attributes (`weight_decay`, `beta_1`), by optimizer and name."""
    found = {}
    for which, optimizer in optimizers.items():
        for owner, thing in ((which, optimizer), (f"{which}.inner", getattr(optimizer, "inner_optimizer", None))):
            for name, value in vars(thing).items() if thing is not None else ():
                if not name.startswith("_") and type(value) in (bool, int, float, str, type(None)) and name != "name":
                    found[f"{owner}/{name}"] = value
    return found


def set_plain(optimizers: dict[str, Any], owner: str, name: str, value: Any) -> None:
    """Set one of them."""
    which, _, inner = owner.partition(".")
    optimizer = optimizers.get(which)
    if inner:
        optimizer = getattr(optimizer, "inner_optimizer", None)
    if optimizer is not None and getattr(optimizer, name, None) != value:
        setattr(optimizer, name, value)


_SAMPLE_BYTES = 256  # of each variable of a window, about


class Fingerprint(BaseFingerprint):
    """Digests of a fixed list of variables, whose values are passed in."""

    def __init__(self, mode: Mode = "auto") -> None:
        self._values: Sequence[Values] = ()
        self._nbytes = 0
        super().__init__(lambda: [flat_bytes(value) for value in self._values], 0, mode, sample_bytes=_SAMPLE_BYTES)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def of(self, values: Sequence[Values], step: int, kind: str | None = None) -> Digests:
        """Return one number a variable (full), or one a variable of this step's window (sample)."""
        if len(values) != self.count:
            self._nbytes = sum(value.nbytes for value in values)
        self._values, self.count = values, len(values)
        try:
            return self.digests(step, kind)
        finally:
            self._values = ()


def digest(values: Values) -> int:
    """Return the digest of all bytes of one value."""
    return digest_of(flat_bytes(values))


class _ByStep:
    """Applies records one after the other (`tranlogs.training.RedoTarget`)."""

    compared = "variables"

    def __init__(self, state: KerasState) -> None:
        self._state = state
        self._values: Sequence[Values] | None = None  # of the updated variables, if the backend has just returned them

    def write_image(self, entry: Record, body: dict[str, Any]) -> None:
        slots, self._values = self._state.variables.by_name, None
        for name in entry.tensor_names():
            array = entry.read(name)
            if name not in slots:
                raise CorruptRecord(
                    entry.reader.path,
                    "it is logged, and the model has no such variable: build all layers and optimizers before fit",
                    step=entry.step,
                    tensor=name,
                )
            assert array is not None
            self._state.backend.assign(slots[name].variable, from_array(array))

    def apply_gradients(self, entry: Record, body: dict[str, Any]) -> None:
        """Call the function that the live step called, with what the live step read."""
        state, logged, forms = self._state, _tensors(entry), body.get("forms", {})
        gradients = []
        for slot in state.variables.trained_of(body.get("optimizer", "optimizer")):
            array = logged.get("grad/" + slot.name.partition("/")[2])
            gradients.append(None if array is None else state.backend.to_device(array, forms.get(slot.name)))
        state.is_halved |= body.get("halved", False)
        if "attributes" in body:
            state.set_attributes(body["attributes"])
        self._values = state.apply(body, gradients, state.plan.updated_variables)

    def read_digests(self, entry: Record, body: dict[str, Any]) -> StateDigests:
        state, kind, values = self._state, body["fingerprint"], self._values
        slots = state.variables.fingerprinted_by(body["record"])
        state.fingerprint_kinds.add(kind)
        if values is None:
            values = state.backend.values_of([slot.variable for slot in slots])
        found = state.fingerprint.of(values[: len(slots)], entry.step, kind)
        indices = range(len(found)) if kind == "full" else window_of(len(slots), entry.step)
        return StateDigests(found, indices, [slot.name for slot in slots])


def _tensors(entry: Record) -> dict[str, AnyArray | None]:
    """Read the step's gradients by name, in one read into new memory, since a backend may keep what it is given."""
    if entry.sparse:
        return {name: entry.read(name) for name in entry.tensor_names()}
    data, places = entry.read_all(), zip(entry.layout.tensors, entry.starts(), entry.layout.sizes, strict=True)
    return {
        spec.name: array_of(spec, data[start : start + size])
        for i, (spec, start, size) in enumerate(places)
        if i not in entry.absent
    }


def found_under(prefix: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a body holds as parts of their own."""
    return {name.removeprefix(prefix): value for name, value in body.items() if name.startswith(prefix)}


def find_place(body: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the number of the loop of a boundary, its epoch, and the number of its batches that are done.

    The epoch of a loop, or of a fit, that has ended is its last one.
    """
    position, loop = body["position"], LoopRecord.read(body.get("loop"))
    epoch = position["epoch"] - position["is_finished"]  # that is of a fit
    epoch = loop.find_epoch(epoch, position["batch"]) if loop.count else epoch
    return max(loop.count, 1), epoch, position["total"] - loop.start.get("total", 0)
