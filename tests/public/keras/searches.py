"""Scripts that use one callback for many trainings: searches and cross-validation, as their users write them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tests.keras.scenario.data import stored_digits
from tranlogs_keras import TranLogsCallback

SAMPLES, BATCH = 96, 16


class Trainings(keras.callbacks.Callback):
    """Counts the batches of each training of the process, and kills the process at batch `die[1]` of training `die[0]`."""

    batches: Counter[int] = Counter()
    number = -1
    die: list[int] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        Trainings.number += 1
        Trainings.batches[Trainings.number] = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        Trainings.batches[Trainings.number] += 1
        if Trainings.die == [Trainings.number, Trainings.batches[Trainings.number]]:
            os.kill(os.getpid(), signal.SIGKILL)


def digits() -> tuple[Any, Any]:
    x, y = stored_digits()
    return (x[:SAMPLES] / 16).astype("float32"), y[:SAMPLES].astype("int64")


def build(rate: float = 0.01, units: int = 8) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def logged(run: str, **options: Any) -> TranLogsCallback:
    return TranLogsCallback(run, durability="process", segment_bytes=1 << 20, **options)


def bits(model: Any) -> list[bytes]:
    return [np.asarray(keras.ops.convert_to_numpy(v)).tobytes() for v in [*model.variables, *model.optimizer.variables]]


def keras_tuner(folder: str, die: list[int] | None = None, executions: int = 1) -> dict[str, Any]:
    """The same architecture with three learning rates: a wrong run would fit each trial."""
    import keras_tuner

    Trainings.die = die

    def hypermodel(hp: Any) -> keras.Model:
        keras.utils.set_random_seed(3)  # KerasTuner draws numbers of its own, from where it is run
        return build(hp.Float("rate", 1e-3, 1e-1, sampling="log"))

    tuner = keras_tuner.RandomSearch(
        hypermodel,
        objective=keras_tuner.Objective("val_loss", "min"),
        max_trials=3,
        seed=5,
        executions_per_trial=executions,
        directory=folder,
        project_name="search",
    )
    x, y = digits()
    tuner.search(
        x,
        y,
        epochs=2,
        batch_size=BATCH,
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
        "best": [np.asarray(w).tobytes() for w in tuner.get_best_models()[0].get_weights()],
    }


def cross_validation(folder: str, die: list[int] | None = None) -> dict[str, Any]:
    """Folds and a final fit, each of which trains a model of its own."""
    from scikeras.wrappers import KerasClassifier
    from sklearn.model_selection import cross_val_score

    Trainings.die = die
    keras.utils.set_random_seed(3)
    x, y = digits()
    classifier = KerasClassifier(
        model=build, epochs=2, batch_size=BATCH, verbose=0, callbacks=[logged(f"{folder}/runs"), Trainings()], random_state=1
    )
    scores = cross_val_score(classifier, x, y, cv=3, error_score="raise")
    classifier.fit(x, y)
    return {
        "scores": [float(score) for score in scores],
        "batches": dict(Trainings.batches),
        "final": bits(classifier.model_),
    }


def optuna(folder: str, die: list[int] | None = None) -> dict[str, Any]:
    """A study in a file; a trial that a kill has left is taken up with its parameters and its run."""
    import optuna
    from optuna.trial import TrialState

    Trainings.die = die
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(f"{folder}/study.log"))
    study = optuna.create_study(
        storage=storage, study_name="rates", load_if_exists=True, sampler=optuna.samplers.BruteForceSampler(seed=1)
    )
    for left in study.get_trials(states=[TrialState.RUNNING]):  # by a process that is no more
        study.tell(left.number, state=TrialState.FAIL)
        study.enqueue_trial(left.params, user_attrs={"run": left.user_attrs.get("run", left.number)})
    x, y = digits()

    def objective(trial: Any) -> float:
        keras.utils.set_random_seed(3)
        model = build(trial.suggest_categorical("rate", [0.1, 0.01, 0.001]))
        run = f"{folder}/runs/{trial.user_attrs.get('run', trial.number)}"
        history = model.fit(x, y, epochs=2, batch_size=BATCH, verbose=0, callbacks=[logged(run), Trainings()])
        return float(history.history["loss"][-1])

    done = len(study.get_trials(states=[TrialState.COMPLETE]))
    study.optimize(objective, n_trials=3 - done)
    found = study.get_trials(states=[TrialState.COMPLETE])
    return {"values": {trial.params["rate"]: trial.value for trial in found}, "batches": dict(Trainings.batches)}


def one_folder_for_all(folder: str) -> dict[str, str]:
    """Trainings that are given the folder of another one; what each is told."""
    x, y = digits()
    found: dict[str, str] = {}

    def fit(name: str, model: Any, callback: Any = None, **changes: Any) -> None:
        arguments = {"x": x, "y": y, "batch_size": BATCH, "epochs": 1, "verbose": 0} | changes
        before = bits(model)
        try:
            model.fit(**arguments, callbacks=[callback or logged(f"{folder}/run")])
            found[name] = "trained" if bits(model) != before else "nothing was trained"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"

    fit("first", build())
    fit("rate", build(0.5))
    fit("units", build(units=9))
    fit("fold", build(), x=x[::-1].copy())
    fit("equal", build())
    return found


def finished_again(folder: str, **build_options: Any) -> dict[str, Any]:
    """A script with one fit."""
    keras.utils.set_random_seed(4)
    x, y = digits()
    model = build(**build_options)
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=[logged(f"{folder}/run"), Trainings()])
    return {"state": bits(model), "batches": dict(Trainings.batches)}


def loader(folder: str, first: int = 0, shape: str = "loader") -> dict[str, Any]:
    """Data of another kind than arrays; `first`: the samples with which they begin."""
    import torch

    keras.utils.set_random_seed(4)
    x, y = digits()
    x, y = np.roll(x, first, 0), np.roll(y, first, 0)
    model = build()
    if shape == "loader":
        tensors = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        data = torch.utils.data.DataLoader(tensors, batch_size=BATCH, shuffle=True)
    else:
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50, seed=3).batch(BATCH)
    model.fit(data, epochs=1, verbose=0, callbacks=[logged(f"{folder}/run"), Trainings()])
    return {"state": bits(model), "batches": dict(Trainings.batches)}
