"""The fits of a run: the identity of each, which one this is, the folder that belongs to it, and those that are finished."""

from __future__ import annotations

import hashlib
import json
import logging
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras

from tranlogs.base.errors import DataError, UsageError
from tranlogs.records import Checkpoint
from tranlogs.training import Recovered, RecoveryReport

from .. import keras_internals
from ..data.given_data import describe_content, other_data
from ..run.run_parts import NewestCheckpoint, RunParts, read_meta
from ..settings import KeepEnds
from ..state.description import Change, class_name, compare_values, normalized
from ..state.variables import optimizers_of

Identity = dict[str, Any]
_log = logging.getLogger("tranlogs")
_SHOWN_MAX = 20
_NAMES = {"model": "the model", "layers": "the layers", "compile": "model.compile", "trial": "the trial"}


def describe_identity(model: Any, epoch_iterator: Any, callbacks: Iterable[Any]) -> Identity:
    """Return what identifies a fit, as plain values that are equal in every process of the same script.

    The description covers the model, the settings of `compile`, the optimizers, the data, and the trial of a
    hyper-parameter search. The number of epochs is no part of it, so that a run can be trained on. What cannot be
    described is None and is not compared.
    """
    adapter = epoch_iterator.data_adapter
    described = _described(model) or {}
    return {
        "model": {key: value for key, value in described.items() if key != "compile_config"} or None,
        "layers": _layers(model),
        "compile": _compile_settings(model),
        "optimizers": {which: _optimizer(optimizer) for which, optimizer in optimizers_of(model).items()},
        "data": {
            **describe_content(adapter),
            "steps_per_epoch": epoch_iterator.steps_per_epoch,
            "shuffle": getattr(adapter, "_shuffle", getattr(adapter, "shuffle", None)),
        },
        "trial": _trial(callbacks),
    }


def _described(thing: Any) -> Any:
    """Return the serialized form of a Keras object, or None if it has no such form."""
    try:
        return normalized(json.loads(json.dumps(keras.saving.serialize_keras_object(thing), default=str)))
    except Exception:  # an object of the user's own may raise anything
        return None


def _layers(model: Any) -> list[Any] | None:
    """Return the layers of a model class of the user's own, whose configuration need not name them."""
    if type(model).__module__.startswith("keras.src."):
        return None
    return [{"class": type(layer).__name__, "config": _described(layer)} for layer in keras_internals.layers_within(model)]


def _compile_settings(model: Any) -> dict[str, Any]:
    """Return losses, metrics and weights of losses. A compile() of the user's own may serialize none of them."""
    try:
        config = model.get_compile_config() or {}
    except Exception:  # an override of the user's own may raise anything: there is nothing to compare then
        config = {}
    # How a model is compiled is compared by the environment, and the optimizers by themselves.
    ignored = ("optimizer", "jit_compile", "run_eagerly")
    described = {key: value for key, value in config.items() if key not in ignored}
    return normalized(json.loads(json.dumps(described, default=str)))  # type: ignore[no-any-return]


def _optimizer(optimizer: Any) -> dict[str, Any]:
    found: dict[str, Any] | None = process_fits.optimizers.get(optimizer)
    if found is None:
        config = _described(optimizer)
        found = {"class": class_name(optimizer), "config": config and config.get("config")}
        process_fits.optimizers[optimizer] = found
    return found


def _trial(callbacks: Iterable[Any]) -> str | None:
    """Return the identifier of the KerasTuner trial to which the fit belongs."""
    for callback in callbacks:
        trial_id = getattr(getattr(callback, "trial", None), "trial_id", None)
        if trial_id is not None:
            return str(trial_id)
    return None


def compare_identities(recorded: dict[str, Any], now: dict[str, Any]) -> list[Change]:
    """Return what differs between two descriptions of fits, each with the old and the new value."""
    found: list[Change] = []
    for key, name in _NAMES.items():
        if key == "trial" or (recorded[key] is not None and now[key] is not None):
            compare_values(name, recorded[key], now[key], found)
    for which in {**recorded["optimizers"], **now["optimizers"]}:
        was, is_ = (identity["optimizers"].get(which) for identity in (recorded, now))
        if was is None or is_ is None or was["class"] != is_["class"]:
            before, after = ("not there" if about is None else about["class"] for about in (was, is_))
            found.append(Change(f"model.{which}", f"model.{which} was {before}, now it is {after}"))
        elif was["config"] is not None and is_["config"] is not None:
            compare_values(f"model.{which}", was["config"], is_["config"], found)
    found += [Change("data", text) for text in other_data(recorded["data"], now["data"])]
    return list(dict.fromkeys(found))


def check_identity(run: Path, differences: list[Change]) -> None:
    """Refuse a fit that differs from the one that the run holds."""
    if not differences:
        return
    shown = "".join(f"\n  - {change.text}" for change in differences[:_SHOWN_MAX])
    more = f"\n  ... and {len(differences) - _SHOWN_MAX} more" if len(differences) > _SHOWN_MAX else ""
    raise UsageError(
        f"{run}: the run holds another training than this one; nothing was trained or changed:{shown}{more}\n"
        "Give a new training a folder of its own. If the change is deliberate and the run is to continue with it, pass "
        "TranLogsCallback(..., accept_changes=True)"
    )


def digest_identity(identity: dict[str, Any]) -> str:
    """Return a short digest that is equal for equal descriptions, in every process."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:12]


def changed_rates(recorded: dict[str, Any], now: dict[str, Any]) -> dict[str, float]:
    """Return the learning rates of optimizers that are numbers and have been changed, by optimizer."""
    rates = [{which: _rate(about) for which, about in identity["optimizers"].items()} for identity in (recorded, now)]
    was, is_ = rates
    return {which: rate for which, rate in is_.items() if rate is not None and was.get(which) not in (None, rate)}


def _rate(about: dict[str, Any]) -> float | None:
    config = about["config"] or {}
    inner = config.get("inner_optimizer")  # of a LossScaleOptimizer
    rate = (inner["config"] if inner else config).get("learning_rate")
    return rate if isinstance(rate, float) else None


class ProcessFits:
    """Facts on the fits of this process that tell which fit of a run another one is.

    Attributes:
        open: what is to be closed of fits that have not ended, by run. A fit that failed did not close its run.
        claimed: folders that copies of a callback have got. Equal fits of one script take turns in the order of their numbers.
        optimizers: descriptions as of their first fit, with the values of the script. Callbacks change optimizers while
            they train (ReduceLROnPlateau).
    """

    def __init__(self) -> None:
        self.open: dict[Path, Any] = {}
        self.claimed: set[Path] = set()
        self.optimizers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._by_run: dict[Path, tuple[weakref.ref[Any], int]] = {}
        self._reports: dict[Path, RecoveryReport] = {}

    def count(self, run: Path, model: Any) -> int:
        """Return how many fits of the model were logged to the run by this process and have ended."""
        if not run.exists():  # deleted since
            self._by_run.pop(run.resolve(), None)
            self._reports.pop(run.resolve(), None)
        known, fits = self._by_run.get(run.resolve(), (None, 0))
        return fits if known is not None and known() is model else 0

    def note(self, run: Path, model: Any, fits: int, report: RecoveryReport | None) -> None:
        """Record that so many fits of the model have ended, and the report with which the last one ended."""
        self._by_run[run.resolve()] = weakref.ref(model), fits
        if report is not None and report.checkpoint_step is not None:
            self._reports[run.resolve()] = report

    def find_report(self, run: Path) -> RecoveryReport | None:
        """Return the report of the recovery from which this process has continued the run; None if it has begun the run."""
        return self._reports.get(run.resolve())

    def check(self, run: Path, model: Any) -> None:
        """Refuse a run to which another model was fitted in this process.

        Raises:
            UsageError: there was one. Its weights would be taken for this model's without any training.
        """
        known, _ = self._by_run.get(run.resolve(), (None, 0))
        if known is not None and known() is not model:
            raise UsageError(
                f"{run}: this process has already fitted another model to this run, and would give its result to this model "
                "without training it. Give each model a folder of its own (a loop over seeds, folds or trials: one for each "
                "turn). For further fits of one model pass the same callback object"
            )


def claim_folder(run: Path, digest: str) -> Path:
    """Return the folder of a fit below `run`; make it if there is none."""
    run.mkdir(parents=True, exist_ok=True)
    while True:
        numbers = _numbers(run)
        own = (path for number, path in sorted(numbers) if path.name == f"{number}-{digest}")
        folder = next((path for path in own if path.resolve() not in process_fits.claimed), None)
        if folder is None:
            folder = run / f"{max((number for number, _ in numbers), default=0) + 1}-{digest}"
            try:
                folder.mkdir()
            except FileExistsError:  # by another process
                continue
        process_fits.claimed.add(folder.resolve())
        return folder


def _numbers(run: Path) -> list[tuple[int, Path]]:
    split = [(path.name.partition("-")[0], path) for path in run.iterdir() if path.is_dir()]
    return [(int(number), path) for number, path in split if number.isdecimal()]


process_fits = ProcessFits()


def require_same_fit(
    parts: RunParts, newest: NewestCheckpoint, identity: dict[str, Any], number: int, epochs: int, *, accepts_changes: bool
) -> tuple[list[Change], dict[str, float]]:
    """Return what differs from the recorded fit of this number, if the user accepts changes, and changed learning rates.

    Only the newest fit of a run may be given more epochs: those of a finished one would never be trained.

    Raises:
        UsageError: something differs, and is not accepted.
    """
    boundary = newest.boundary
    held = boundary["position"]["fit"]
    recorded = boundary["identity"] if held == number else identity_of(boundary["earlier"], number) if held > number else None
    changes = [] if recorded is None else compare_identities(recorded, identity)
    done = boundary["earlier"][number]["epochs"] if held > number else None
    if done is not None and epochs > done:
        text = f"fit {number + 1} was finished with epochs={done}, now it has epochs={epochs}, and the run stands in fit "
        changes.append(Change("epochs", f"{text}{held + 1}: train the other epochs by a new fit behind the others"))
    if not (changes and held == number and _has_other_variables(parts, newest)):
        if not accepts_changes:
            check_identity(parts.run, changes)
        process_fits.check(parts.run, parts.model)
    return changes, {} if recorded is None else changed_rates(recorded, identity)


def _has_other_variables(parts: RunParts, newest: NewestCheckpoint) -> bool:
    """Return True if recovery will refuse the model, and name each variable."""
    with Checkpoint(newest.path) as checkpoint:
        return bool(parts.state.differences(checkpoint))


def identity_of(entries: list[dict[str, Any]], number: int) -> dict[str, Any]:
    """Return the identity of an earlier fit. Its entry has what differs from the fit before."""
    found: dict[str, Any] = {}
    for entry in entries[: number + 1]:
        found |= entry["identity"]
    return found


class EarlierFits:
    """Record of the finished fits of a run: for each its history, its epochs, its identity, and the step at which it ended.

    Attributes:
        entries: one for each fit. The list is replaced, never changed. `epochs` is None if the fit was stopped.
        deviation: how the fit before the present one deviated from the run without a crash; None if it did not.
    """

    def __init__(self, parts: RunParts, retention: KeepEnds) -> None:
        self._parts, self._retention = parts, retention
        self.entries: list[dict[str, Any]] = []
        self.deviation: tuple[str, bool] | None = None

    def read(self, boundary: dict[str, Any], *, keeps_checkpoints: bool) -> None:
        """Take them from the body of a boundary."""
        self.entries = boundary.get("earlier", [])
        if keeps_checkpoints:
            self._keep_checkpoints()

    def begin_next(self, body: dict[str, Any], end: Recovered) -> int:
        """Begin the next fit of the run, with the model as the script has left it.

        `body` is that of the boundary at which the run's log ends.

        Returns:
            The batches of the run so far.
        """
        before = body.get("earlier", [])
        known = identity_of(before, len(before) - 1)
        was_stopped = body["has_stopped"] or not body["position"]["is_finished"]
        entry = {
            "history": body.get("callback.History", {}),
            "epochs": None if was_stopped else body["position"]["epoch"],
            "step": end.position.step,
            "identity": {key: value for key, value in body["identity"].items() if known.get(key, self) != value},
        }
        self.entries, self.deviation = [*before, entry], body.get("deviation")
        self._keep_checkpoints()
        return int(body["position"]["total"])

    def restore_end(self, number: int) -> tuple[bool, dict[str, Any]]:
        """Give the model the weights with which a fit of the run ended, for the script's code after the fit.

        Returns:
            False if no checkpoint has them; and the body of the boundary at which the fit ended, which then has the history
            alone.
        """
        journal, has_end = self._parts.journal, False
        entry = self.entries[number] if number < len(self.entries) else {"step": -1, "history": {}}
        body: dict[str, Any] = {"callback.History": entry["history"]}
        rows = [row for row in journal.catalog.checkpoints() if row.step == entry["step"]]
        for row in sorted(rows, key=lambda row: row.sequence):  # the last one of the fit is that of its end
            path = journal.paths.checkpoints / row.name
            try:
                meta = read_meta(path)
                if meta["boundary"]["position"]["fit"] == number:
                    with Checkpoint(path) as checkpoint:
                        has_end = self._parts.state.restore_weights(checkpoint, meta)
                    body = meta["boundary"]
            except DataError as error:
                _log.warning("%s", error)
        return has_end, body

    def _keep_checkpoints(self) -> None:
        self._retention.steps.update(fit["step"] for fit in self.entries)
