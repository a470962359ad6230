"""Wrong uses of `LoggedOptimizer` and values that no loop can keep, each with what it says."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.keras.inside import said_of
from tests.keras.loops import Best, arrays, classifier
from tranlogs_keras import LoggedOptimizer


class Holder:
    """Has a state that only pickle could store."""

    def state_dict(self) -> dict[str, Any]:
        return {"x": object()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("its state was never stored")


def _said(acts: dict[str, Any]) -> dict[str, str]:
    return dict(zip(acts, said_of(*acts.values()), strict=True))


def refusals(run: str) -> dict[str, str]:
    """Return the message of each wrong use."""
    adam, model, other = keras.optimizers.Adam(), classifier(), classifier()
    found = _said({"no optimizer": lambda: LoggedOptimizer("adam", f"{run}/a", model)})
    found |= _said({"no model": lambda: LoggedOptimizer(adam, f"{run}/b", None)})
    if keras.backend.backend() == "jax":
        return found
    logged = LoggedOptimizer(adam, f"{run}/c", model)
    logged.track(numbers=np.random.default_rng(0))
    gradients = [np.zeros(v.shape, "float32") for v in other.trainable_variables]
    found |= _said(
        {
            "wrapped twice": lambda: LoggedOptimizer(logged, f"{run}/d", model),
            "logged already": lambda: LoggedOptimizer(adam, f"{run}/e", model),
            "tracked": lambda: logged.track(thing=object()),
            "tracked, unstorable": lambda: logged.track(holder=Holder()),
            "tracked twice": lambda: logged.track(numbers=np.random.default_rng(1)),
            "other variables": lambda: logged.apply(gradients, other.trainable_variables),
            "no bound": lambda: next(iter(logged.batches(arrays(), batch_size=4))),
            "range": lambda: logged.epochs(range(1, 4), arrays(), batch_size=4),
            "nested": lambda: [list(logged.steps(2)) for _ in logged.steps(2)],
        }
    )
    logged.close()
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    found |= _said({"unbuilt": lambda: LoggedOptimizer(keras.optimizers.Adam(), f"{run}/f", unbuilt).recover()})
    return found | (_of_the_other_integration(adam, model, run) if keras.backend.backend() == "torch" else {})


def _of_the_other_integration(adam: Any, model: Any, run: str) -> dict[str, str]:
    import torch

    import tranlogs_torch

    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    return _said(
        {
            "torch's given to Keras's": lambda: LoggedOptimizer(sgd, f"{run}/g", model),
            "Keras's given to torch's": lambda: tranlogs_torch.LoggedOptimizer(adam, f"{run}/h"),
            "a nested one of Keras's": lambda: tranlogs_torch.LoggedOptimizer(scaled, f"{run}/i"),
        }
    )


def values(run: str) -> list[str]:
    """Return what is said of values that cannot be remembered or tracked."""
    model = classifier()
    optimizer = LoggedOptimizer(keras.optimizers.SGD(1e-2), run, model, segment_bytes=1 << 20)
    itself: dict[str, Any] = {"a": []}
    itself["a"].append(itself)
    best = Best()
    best.state_dict = lambda: itself  # type: ignore[method-assign]
    state = optimizer.remember(x=0)
    found = said_of(
        lambda: optimizer.remember(replay=[1, {"fn": lambda: 1}]),
        lambda: setattr(state, "x", itself),
        lambda: setattr(state, "x", [np.empty(1 << 24)]),
        lambda: optimizer.remember(layer=model.layers[1]),
        lambda: optimizer.remember(seeds=(keras.random.SeedGenerator(1),)),
        lambda: optimizer.track(best=best),
        lambda: (optimizer.recover(), optimizer.remember(late=1)),
    )
    optimizer.close()
    return found


def renamed(run: str) -> list[str]:
    """Return the notes of a run that goes on with a generator tracked under another name."""
    notes: list[str] = []
    for name, until in (("noise", 3), ("dropout", 5)):
        model, numbers = classifier(), np.random.default_rng(0)
        logged = LoggedOptimizer(keras.optimizers.SGD(), run, model, segment_bytes=1 << 20)
        logged.track(**{name: numbers})
        for _ in logged.batches(arrays(), until=until, batch_size=4):
            numbers.random()
            logged.apply([keras.ops.ones(v.shape) for v in model.trainable_variables], model.trainable_variables)
        assert logged.report.exact is None or name == "noise"
        notes = logged.report.notes
        logged.close()
    return notes


def begin(run: str) -> str:
    """Return the report of a new run."""
    optimizer = LoggedOptimizer(keras.optimizers.Adam(1e-2), run, classifier(), checkpoint_every=4)
    report = str(optimizer.recover())
    optimizer.close()
    return report
