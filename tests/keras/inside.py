"""Functions of jobs that nobody kills: fits that an exception ends and that are taken up in the same process, what is said."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from keras.src.callbacks.callback_list import CallbackList

import tranlogs.training.gradient_layout
import tranlogs.training.write_forecast
from tests.keras.callbacks import Interrupt, Stop, Trainings, Writing
from tests.keras.data import digits, given
from tests.keras.models import bits, made, made_own
from tranlogs.base.errors import UsageError
from tranlogs.training.write_forecast import FIRST_UNITS
from tranlogs_keras import TranLogsCallback
from tranlogs_keras.replay.offline import OfflineRun


def logged(run: str, **options: Any) -> TranLogsCallback:
    """Return a callback that takes no checkpoint by itself, so that all is redone from the log."""
    settings: dict[str, Any] = {"overhead": None, "checkpoint_every": 1000, "durability": "process", "segment_bytes": 1 << 20}
    return TranLogsCallback(run, **(settings | {"verbose": False} | options))


def left_and_taken_up(
    make: Any, folder: str, *beside: Any, data: Any = None, after: int = 8, compares: bool = True, **options: Any
) -> dict[str, Any]:
    """Leave a fit in its middle, take it up by a fresh model, and compare with a fit that was not left.

    Args:
        make: returns a fresh model.
        folder: of the runs.
        beside: what returns a further callback, made anew each time.
        data: returns arguments of `fit`.
        after: batches before the fit is left.
        compares: otherwise the second fit ends where its first epoch begins, so that nothing more is compiled.
        options: of the callback.
    """

    def fit(run: str, *ends: Any) -> tuple[Any, Any]:
        keras.utils.set_random_seed(5)  # a pipeline takes its seed as it is made
        arguments = {"verbose": 0} | (given("arrays") if data is None else data())
        model, callback = make(), logged(f"{folder}/{run}", **options)
        with contextlib.suppress(Stop):
            model.fit(**arguments, callbacks=[callback, *(one() for one in beside), *ends])
        return bits(model), callback.report

    fit("cut", Interrupt(after))
    found, report = fit("cut", *([] if compares else [Interrupt(0)]))
    right = fit("whole")[0] if compares else found
    different = [i for i, (a, b) in enumerate(zip(found, right, strict=True)) if a != b]
    about = {"exact": report.exact, "replayed": report.replayed, "step": report.step, "notes": report.notes}
    return {"different": different} | about


def redone(
    folder: str, names: list[str], *, model: str = "cnn", log: str = "auto", compares: bool = True, **options: Any
) -> dict[str, Any]:
    """For each optimizer: a fit that is left and taken up, whose every redone step is compared. `options` are of the model."""
    few = {"count": 12} if model == "fusing" else {}
    size = {"batch_size": 1} if model == "fusing" else {}

    def data() -> dict[str, Any]:
        return given("arrays", **few) | size

    def left(name: str) -> dict[str, Any]:
        about: dict[str, Any] = {"compares": compares, "log": log, "fingerprint": "full"}
        return left_and_taken_up(lambda: made(name, model, **options), f"{folder}/{name}", data=data, **about)

    return {name: left(name) for name in names}


def written_at(folder: str, *, place: str, what: str, data: str = "arrays") -> dict[str, Any]:
    """A fit with a callback that writes, left in its second epoch and taken up; and the same in one go."""
    if what == "gradient":
        tranlogs.training.gradient_layout.SMALL_BYTES = 0  # as of large ones, no gradient is copied before it is written
    on_jax = keras.backend.backend() == "jax"
    model = "sparse" if what == "frozen" else "dense" if on_jax else "line"  # dense: other tests on JAX have compiled it

    def make() -> Any:
        return made("adam", model, jit_compile=on_jax)

    def arguments() -> dict[str, Any]:
        return given(data) | {"epochs": 3, "validation_data": digits(20)}

    return left_and_taken_up(make, folder, lambda: Writing(place, what), data=arguments, after=14, fingerprint="full")


def written_by_nobody(folder: str) -> dict[str, Any]:
    """Writes between steps that come from no callback; then, some steps later, an end, and another process."""
    looks, end = tranlogs.training.write_forecast, CallbackList.on_train_batch_end
    looks.FIRST_UNITS, looks._SHARE = 2, 0.02  # looks come in a short fit, too, and not at each boundary

    def ended(self: Any, batch: int, logs: Any = None) -> None:
        end(self, batch, logs)
        if batch >= 40:
            self.model.layers[-1].kernel.assign(self.model.layers[-1].kernel * 0.99)

    CallbackList.on_train_batch_end, said = ended, _said()

    def data() -> dict[str, Any]:
        return given("arrays") | {"batch_size": 1}

    found = left_and_taken_up(lambda: made("adam", "line"), folder, data=data, after=60, fingerprint="full")
    return found | {"said": "\n".join(said)}


def inexact_in_one_call(folder: str) -> dict[str, Any]:
    """A backend that computes another update within a step than in redo: by a little, as compilers do."""
    from tranlogs_keras.backends.tensorflow import TensorFlowTap, WholeStep

    update, call = TensorFlowTap._update, WholeStep.__call__
    wholes = [0]

    def other(self: Any, gradients: dict[str, Any]) -> None:
        update(self, {place: gradient * (1 + 2**-20) for place, gradient in gradients.items()})

    def counted(self: Any, iterator: Any) -> Any:
        wholes[0] += 1
        return call(self, iterator)

    TensorFlowTap._update, WholeStep.__call__ = other, counted  # type: ignore[method-assign]

    def data() -> dict[str, Any]:
        return given("arrays") | {"epochs": 2}

    options: dict[str, Any] = {"fingerprint": "full", "checkpoint_every": 6}
    found = left_and_taken_up(lambda: made("adam", "dense"), folder, data=data, after=14, **options)
    return found | {"wholes": wholes[0]}


def _said() -> list[str]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tranlogs").addHandler(handler)
    return said


def calls(run: str) -> dict[str, Any]:
    """Calls into TensorFlow by step, from the end of one to the end of the next: how many had how many."""
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import context

    found: list[int] = []
    count = [0]
    call, execute, end = context.Context.call_function, pywrap_tfe.TFE_Py_FastPathExecute, CallbackList.on_train_batch_end

    def counted_call(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        return call(*arguments, **options)

    def counted_execute(*arguments: Any) -> Any:
        count[0] += 1
        return execute(*arguments)

    def ended(self: Any, batch: int, logs: Any = None) -> None:
        found.append(count[0])
        count[0] = 0
        end(self, batch, logs)

    model = made("adam", "line")
    context.Context.call_function, CallbackList.on_train_batch_end = counted_call, ended
    pywrap_tfe.TFE_Py_FastPathExecute = counted_execute
    model.fit(**given("arrays") | {"batch_size": 1}, verbose=0, callbacks=[logged(run)])
    return dict(Counter(found[FIRST_UNITS + 2 :]))  # tracing, and looks at each boundary


def made_ahead(run: str) -> list[str]:
    """Return "made" for each batch that a fit makes of its arrays, and "end" for each step."""
    from tranlogs_keras.data.source import Arrays

    found: list[str] = []
    make, end = Arrays._batches, CallbackList.on_train_batch_end

    def noted(self: Any, *arguments: Any) -> Any:
        for batch in make(self, *arguments):
            found.append("made")
            yield batch

    def ended(self: Any, batch: int, logs: Any = None) -> None:
        found.append("end")
        end(self, batch, logs)

    Arrays._batches, CallbackList.on_train_batch_end = noted, ended  # type: ignore[method-assign]
    made("adam", "line").fit(**given("arrays"), verbose=0, callbacks=[logged(run)])
    return found


def passes_over_changed_arrays() -> list[float]:
    """Return the sums of two passes over arrays that the script has changed in between, in place."""
    from tranlogs_keras.backends import make_backend
    from tranlogs_keras.data.given_data import make_source
    from tranlogs_keras.loop.data_place import LoopData

    x, y = np.arange(12.0, dtype="float32").reshape(6, 2), np.zeros(6, "float32")
    data = LoopData((x, y), 2, True, is_stateless=False)
    source = make_source(data, make_backend(), seed=7, doubt=lambda *_: None, reads_ahead=False)
    found = []
    for number in range(2):
        found.append(sum(float(np.sum(keras.ops.convert_to_numpy(batch[0]))) for batch in source.open(number, 0)))
        x += 100.0
    return found


# Several fits in one process.


def many_fits(folder: str) -> dict[str, Any]:
    """fit, fit with the callback, an exception, fit without, fit with another callback: on one model."""
    arguments = given("arrays-in-order") | {"verbose": 0}
    one, other = made("adam", "line"), made("adam", "line")

    def fit_both(seed: int, *callbacks: Any, cut: bool = False, epochs: int = 1) -> None:
        for model, watching in ((one, callbacks), (other, ())):
            keras.utils.set_random_seed(seed)
            with contextlib.suppress(Stop):
                model.fit(**arguments, epochs=epochs, callbacks=[*watching, *([Interrupt(3)] if cut else [])])

    fit_both(1)
    fit_both(2, logged(f"{folder}/first"))
    fit_both(3, logged(f"{folder}/second"), cut=True)
    fit_both(4)  # the callback of before must not log this
    fit_both(5, logged(f"{folder}/third"), epochs=2)
    return {
        "same": bits(one) == bits(other),
        "is_as_keras_made_it": "train_step" not in vars(one) and "apply" not in vars(one.optimizer),
        "steps": [OfflineRun(Path(folder, name, "rank0")).replay().step for name in ("first", "second", "third")],
    }


def left_by_an_exception(folder: str) -> tuple[bool, Any]:
    """The same callback and model, fitted again after an exception: that fit goes on."""
    arguments = given("arrays") | {"verbose": 0, "epochs": 2}
    whole, callback = made("adam", "line"), logged(f"{folder}/left")
    whole.fit(**arguments, callbacks=[logged(f"{folder}/whole")])
    model = made("adam", "line")
    with contextlib.suppress(Stop):
        model.fit(**arguments, callbacks=[callback, Interrupt(13)])
    model.fit(**arguments, callbacks=[callback])
    return bits(whole) == bits(model), callback.report.exact


# What is said where something is wrong, doubtful or changed.


def said_of(*acts: Any) -> list[str]:
    """Return what each act raises."""
    found = []
    for act in acts:
        try:
            act()
            found.append("")
        except Stop:
            found.append("")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def refusals(folder: str) -> dict[str, str]:
    """What is said where something is wrong."""
    arguments = given("arrays") | {"verbose": 0}
    model, shared = made("adam", "line"), logged(f"{folder}/shared")
    rows = digits()[0].reshape(-1, 64)
    backup, run = keras.callbacks.BackupAndRestore(f"{folder}/backup"), f"{folder}/run"
    acts = {
        "log": lambda: logged(f"{folder}/a", log="all"),
        "run": lambda: TranLogsCallback(None),
        "checkpoint_every": lambda: logged(f"{folder}/a", checkpoint_every="often"),
        "backup": lambda: model.fit(**arguments, callbacks=[logged(f"{folder}/b"), backup]),
        "two": lambda: model.fit(**arguments, callbacks=[logged(f"{folder}/c"), logged(f"{folder}/d")]),
        "trains": lambda: model.fit(**arguments, callbacks=[logged(run)]),
        "shape": lambda: made("adam", "sparse").fit(**arguments, callbacks=[logged(run)]),
        "optimizer": lambda: made("sgd", "line").fit(**arguments, callbacks=[logged(run)]),
        "equal": lambda: made("adam", "line").fit(**arguments, callbacks=[logged(run)]),
        "trains again": lambda: model.fit(**arguments, callbacks=[shared]),
        "models": lambda: made("adam", "line").fit(**arguments, callbacks=[shared]),
        "two updates": lambda: made_own("wgan", rows).fit(rows, verbose=0, callbacks=[logged(f"{folder}/f", log="gradients")]),
        "after": lambda: model.fit(**arguments, callbacks=[logged(f"{folder}/e")]),
    }
    return dict(zip(acts, said_of(*acts.values()), strict=True))


def changed_scripts(folder: str) -> dict[str, Any]:
    """Runs that are left in their middle, and taken up by a script that is another one."""
    arguments = given("arrays-in-order") | {"verbose": 0}
    found = {}

    def compiled(activation: str = "tanh", loss: str = "mse", **options: Any) -> Any:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(5)
        model = keras.Sequential(
            [keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(3, activation=activation), layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(**options), loss)
        return model

    def taken_up(name: str, model: Any, **changes: Any) -> None:
        run, options = f"{folder}/{name}", {"accept_changes": True} | changes.pop("options", {})
        with contextlib.suppress(Stop):
            compiled().fit(**arguments, callbacks=[logged(run), Interrupt(5)])
        rate = float(model.optimizer.learning_rate) if name == "rate" else None
        without = logged(run, **(options | {"accept_changes": False}))
        (found[f"{name} as it is"],) = said_of(lambda: model.fit(**(arguments | changes), callbacks=[without, Interrupt(1)]))
        callback = logged(run, **options)
        (refused,) = said_of(lambda: model.fit(**(arguments | changes), callbacks=[callback]))
        assert rate is None or float(model.optimizer.learning_rate) == rate
        notes = refused or " | ".join(callback.report.notes)
        found[name] = {"exact": "refused" if refused else callback.report.exact, "notes": notes}

    x, y = digits()
    taken_up("same", compiled())
    taken_up("batch_size", compiled(), batch_size=16)
    taken_up("samples", compiled(), x=x[:40], y=y[:40])
    taken_up("values", compiled(), x=x * 2)
    taken_up("order", compiled(), options={"data_order": "keras"}, shuffle=True)
    taken_up("activation", compiled(activation="relu"))
    taken_up("loss", compiled(loss="mae"))
    taken_up("rate", compiled(learning_rate=0.5))
    taken_up("beta", compiled(beta_1=0.5))
    taken_up("schedule", compiled(learning_rate=keras.optimizers.schedules.CosineDecay(0.1, 10)))
    return found


def finished(folder: str, first: int = 0, rate: float = 0.01) -> dict[str, Any]:
    """A script with one fit; return what it came to, and how many steps this process took; `first` is the first sample."""
    model = made(keras.optimizers.Adam(rate), "line", seed=4)
    data, taken = given("loader", first=first), [0]
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: taken.__setitem__(0, taken[0] + 1))
    model.fit(**data, epochs=1, verbose=0, callbacks=[logged(f"{folder}/run", verbose=True), count])
    return {"bits": bits(model), "taken": taken[0]}


# Train steps and optimizers of which gradients tell not everything.


class Noisy(keras.optimizers.SGD):
    """Its update draws random numbers, of which gradients tell nothing."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        noise = np.random.standard_normal(tuple(variable.shape)).astype("float32")
        super().update_step(gradient + keras.ops.convert_to_tensor(noise) * 0.01, variable, learning_rate)


def noisy_optimizer(folder: str) -> dict[str, Any]:
    """An optimizer whose steps cannot be redone from gradients."""
    said = _said()
    return left_and_taken_up(lambda: made(Noisy(0.05), "line"), folder) | {"said": "\n".join(said)}


# What a run's files give without the script.


class InverseRoot(keras.optimizers.schedules.LearningRateSchedule):
    """A learning-rate schedule of the script's own."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate * keras.ops.rsqrt(keras.ops.cast(step, "float32") + 1)

    def get_config(self) -> dict[str, Any]:
        return {"rate": self.rate}


def without_the_script(folder: str) -> dict[str, Any]:
    """What a run alone gives, of models and optimizers whose updates depend on more than they say."""
    found = {}
    rate = keras.ops.convert_to_tensor(0.01)
    optimizers: dict[str, tuple[Any, str]] = {
        "constrained": ("adam", "constrained"),
        "excluded": ("adamw+exclude", "dense"),
        "numpy": (keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(np.float64(0.01), 40)), "dense"),
        "tensor": (keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(rate, 40)), "dense"),
        "own": (keras.optimizers.Adam(InverseRoot(0.01)), "dense"),
    }
    for name, (optimizer, model) in optimizers.items():
        fresh = made(optimizer, model)
        fresh.fit(**given("arrays"), verbose=0, callbacks=[logged(f"{folder}/{name}")])
        run = OfflineRun(Path(f"{folder}/{name}/rank0"))
        if name == "own":
            with pytest.raises(UsageError, match=f"--optimizer {__name__}:InverseRoot"):
                run.replay()
            run = OfflineRun(Path(f"{folder}/{name}/rank0"), optimizers=[f"{__name__}:InverseRoot"])
        report = run.replay(checkpoint=min(path.name for path in Path(f"{folder}/{name}/rank0/checkpoints").iterdir()))
        mine = {slot.name.removeprefix("param/"): np.asarray(slot.variable) for slot in run.state.variables.trained}
        same = {v.path: np.asarray(v).tobytes() for v in fresh.trainable_variables} == {k: v.tobytes() for k, v in mine.items()}
        found[name] = {"exact": report.exact, "replayed": report.replayed, "same": same}
    return found


def from_weights(path: str, run: str) -> dict[str, Any]:
    """Load an exported file into the model, and compare with what recovery brings back."""
    fresh, other = (made("adam", "dense", jit_compile=keras.backend.backend() == "jax", seed=11) for _ in range(2))
    for one in (fresh, other):
        one.optimizer.build(one.trainable_variables)
    fresh.load_weights(path)
    with contextlib.suppress(Stop):
        other.fit(**given("arrays"), epochs=3, verbose=0, callbacks=[logged(run, recheck=False), Interrupt(0)])
    recovered, loaded = (
        [np.asarray(v).tobytes() for v in [*m.trainable_variables, *m.optimizer.variables]] for m in (other, fresh)
    )
    return {"optimizer_step": int(fresh.optimizer.iterations), "same_as_resumed": loaded == recovered}


def loads_model(path: str) -> list[int]:
    """Load a whole model and predict with it."""
    model = keras.models.load_model(path)
    return list(model.predict(digits()[0][:13], verbose=0).shape)


# One callback for many trainings: a search and a cross-validation, as their users write them.


def build(rate: float = 0.01) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def keras_tuner(folder: str, die: list[int] | None = None) -> dict[str, Any]:
    """The same architecture with two learning rates: a wrong run would fit each trial."""
    import keras_tuner

    Trainings.die = die

    def hypermodel(hp: Any) -> keras.Model:
        keras.utils.set_random_seed(3)  # KerasTuner draws numbers of its own, from where it is run
        return build(hp.Float("rate", 1e-3, 1e-1, sampling="log"))

    tuner = keras_tuner.RandomSearch(
        hypermodel,
        objective=keras_tuner.Objective("val_loss", "min"),
        max_trials=2,
        seed=5,
        directory=folder,
        project_name="search",
    )
    x, y = digits(96)
    x = x.reshape(-1, 64)
    tuner.search(
        x,
        y,
        epochs=2,
        batch_size=16,
        validation_split=0.25,
        verbose=0,
        callbacks=[logged(f"{folder}/runs"), Trainings()],
    )
    return {
        "trials": {
            trial.trial_id: [trial.status, trial.hyperparameters.values["rate"], trial.score]
            for trial in tuner.oracle.trials.values()
        },
        "batches": dict(Trainings.batches),
        "runs": sorted(path.name.partition("-")[0] for path in Path(folder, "runs").iterdir()),
        "best": [w.tobytes() for w in tuner.get_best_models()[0].get_weights()],
    }


def cross_validation(folder: str, die: list[int] | None = None) -> dict[str, Any]:
    """Folds and a final fit, each of which trains a model of its own."""
    from scikeras.wrappers import KerasClassifier
    from sklearn.model_selection import cross_val_score

    Trainings.die = die
    keras.utils.set_random_seed(3)
    x, y = digits(96)
    x = x.reshape(-1, 64)
    classifier = KerasClassifier(
        model=build, epochs=2, batch_size=16, verbose=0, callbacks=[logged(f"{folder}/runs"), Trainings()], random_state=1
    )
    scores = cross_val_score(classifier, x, y, cv=3, error_score="raise")
    classifier.fit(x, y)
    return {
        "scores": [float(score) for score in scores],
        "batches": dict(Trainings.batches),
        "final": bits(classifier.model_),
    }


# Parts.


def changed_variables() -> dict[str, Any]:
    """Change two variables between boundaries, one of which the run knows, and one that is made late.

    The search looks at all that is alive in the process, and must not ask an object for its class: PyTorch has one that warns.
    """
    import warnings

    import torch.distributed  # noqa: F401

    from tranlogs_keras.backends import make_backend
    from tranlogs_keras.loop.untracked_variables import UntrackedVariables

    class Asked:
        """Counts how often its class is asked for, as a lazy object would act on it."""

        count = 0

        @property
        def __class__(self) -> Any:
            Asked.count += 1
            return Asked

    one, known = keras.Variable([1.0], name="one"), keras.Variable([1.0], name="known")
    search, alive, found = UntrackedVariables(make_backend()), [Asked(), time], []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found.append(search.find_changed([known]))
        one.assign([2.0])
        known.assign([2.0])
        late = keras.Variable([1.0], name="late")
        found += [search.find_changed([known]), search.find_changed([known])]
        late.assign([2.0])
        found.append(search.find_changed([known]))
    return {"found": found, "warned": [str(one.message) for one in caught], "asked": Asked.count, "alive": len(alive)}


def _event_file(folder: Path, seconds: float, process: str) -> Path:
    path = folder / "train" / f"events.out.tfevents.{int(seconds)}.{process}.0.v2"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(90))
    return path


def cut_event_files(folder: str) -> dict[str, int | None]:
    """Restore files of several processes, of which the boundary holds 40 bytes each; return the sizes after that."""
    from tranlogs_keras.state.callbacks import restore_file

    now, host, pid, logs = time.time(), socket.gethostname(), os.getpid(), Path(folder)
    files = {
        "former": _event_file(logs, now - 500, f"{host}.7"),
        "former, in the second in which this process began": _event_file(logs, now, f"{host}.{pid + 1}"),
        "former, with the number of this process": _event_file(logs, now - 10**6, f"{host}.{pid}"),
        "former, made after the boundary": _event_file(logs, now - 499, f"{host}.7"),
        "this process": _event_file(logs, now, f"{host}.{pid}"),
        "another training": _event_file(logs, now - 9, "other.host.12"),
    }
    known = [path for name, path in files.items() if name.startswith("former") and "boundary" not in name]
    recorded = {
        "sizes": {f"train/{path.name}": 40 for path in known},
        "processes": [f"{host}.7", f"{host}.{pid + 1}", f"{host}.{pid}"],
    }
    restore_file(SimpleNamespace(log_dir=folder), recorded, is_complete=False)
    return {name: path.stat().st_size if path.exists() else None for name, path in files.items()}
