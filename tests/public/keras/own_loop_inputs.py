"""Wrong uses of `LoggedOptimizer`, each with what it says."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.public.keras.own_loop import arrays, classifier
from tranlogs_keras import LoggedOptimizer


def _message(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _of_the_other_integration(adam: Any, model: Any, run: str) -> dict[str, str]:
    import torch

    import tranlogs_torch

    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    return {
        "torch's given to Keras's": _message(lambda: LoggedOptimizer(sgd, f"{run}/g", model)),
        "Keras's given to torch's": _message(lambda: tranlogs_torch.LoggedOptimizer(adam, f"{run}/h")),
        "a nested one of Keras's": _message(lambda: tranlogs_torch.LoggedOptimizer(scaled, f"{run}/i")),
    }


class Holder:
    """Has a state that only pickle could store."""

    def state_dict(self) -> dict[str, Any]:
        return {"x": object()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("its state was never stored")


def refusals(run: str) -> dict[str, str]:
    """Return the message of each wrong use."""
    adam, model = keras.optimizers.Adam(), classifier()
    found = {"no optimizer": _message(lambda: LoggedOptimizer("adam", f"{run}/a", model))}
    found["no model"] = _message(lambda: LoggedOptimizer(adam, f"{run}/b", None))
    if keras.backend.backend() == "jax":
        return found
    logged = LoggedOptimizer(adam, f"{run}/c", model)
    found["wrapped twice"] = _message(lambda: LoggedOptimizer(logged, f"{run}/d", model))
    found["logged already"] = _message(lambda: LoggedOptimizer(adam, f"{run}/e", model))
    found["tracked"] = _message(lambda: logged.track(thing=object()))
    found["tracked, unstorable"] = _message(lambda: logged.track(holder=Holder()))
    logged.track(numbers=np.random.default_rng(0))
    found["tracked twice"] = _message(lambda: logged.track(numbers=np.random.default_rng(1)))
    other = classifier()
    gradients = [np.zeros(v.shape, "float32") for v in other.trainable_variables]
    found["other variables"] = _message(lambda: logged.apply(gradients, other.trainable_variables))
    found["no bound"] = _message(lambda: next(iter(logged.batches(arrays(), batch_size=4))))
    found["range"] = _message(lambda: logged.epochs(range(1, 4), arrays(), batch_size=4))
    found["nested"] = _message(lambda: [list(logged.steps(2)) for _ in logged.steps(2)])
    logged.close()
    if keras.backend.backend() == "torch":
        found |= _of_the_other_integration(adam, model, run)
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    found["unbuilt"] = _message(lambda: LoggedOptimizer(keras.optimizers.Adam(), f"{run}/f", unbuilt).recover())
    return found


def renamed(run: str) -> list[str]:
    """Return the notes of a run that goes on with a generator tracked under another name."""
    notes: list[str] = []
    for name in ("noise", "dropout"):
        model, numbers = classifier(), np.random.default_rng(0)
        logged = LoggedOptimizer(keras.optimizers.SGD(), run, model, segment_bytes=1 << 20)
        logged.track(**{name: numbers})
        for _ in logged.batches(arrays(), until=3 if name == "noise" else 5, batch_size=4):
            numbers.random()
            logged.apply([np.ones(v.shape, "float32") for v in model.trainable_variables], model.trainable_variables)
        assert logged.report.exact is None or name == "noise"
        notes = logged.report.notes
        logged.close()
    return notes
