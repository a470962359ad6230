"""Scripts that use one callback for many trainings: searches and cross-validation, as their users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from tests.keras import data
from tests.keras.callbacks import Trainings
from tests.keras.models import bits
from tranlogs_keras import TranLogsCallback

BATCH = 16


def digits() -> tuple[Any, Any]:
    x, y = data.digits(96)
    return x.reshape(-1, 64), y


def build(rate: float = 0.01) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def logged(run: str, **options: Any) -> TranLogsCallback:
    return TranLogsCallback(run, durability="process", segment_bytes=1 << 20, **options)


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
        "best": [w.tobytes() for w in tuner.get_best_models()[0].get_weights()],
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
