"""What a run's files give without the script that trained it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from tests.keras.scenario.data import EPOCHS, digits, given
from tests.keras.scenario.ends import Stop
from tests.keras.scenario.fits import logged, made
from tests.keras.scenario.outcome import bits
from tranlogs_keras.replay.offline import OfflineRun


def without_the_script(folder: str) -> dict[str, Any]:
    """What a run alone gives, of models and optimizers whose updates depend on more than they say."""

    found = {}
    for name, model, optimizer in (("constrained", "constrained", "adam"), ("excluded", "dense", "adamw+exclude")):
        fresh = made(optimizer, model)
        fresh.fit(**given("arrays"), verbose=0, callbacks=[logged(f"{folder}/{name}")])
        right = {v.path: bits(v) for v in fresh.trainable_variables}
        run = OfflineRun(Path(f"{folder}/{name}/rank0"))
        report = run.replay(checkpoint=min(path.name for path in Path(f"{folder}/{name}/rank0/checkpoints").iterdir()))
        mine = {slot.name.removeprefix("param/"): slot.variable for slot in run.state.variables.trained}
        found[name] = {
            "exact": report.exact,
            "replayed": report.replayed,
            "same": {k: bits(v) for k, v in mine.items()} == right,
        }
    return found


def from_weights(
    path: str, run: str, jit: bool = False, model: str = "cnn", optimizer: str = "adam-schedule"
) -> dict[str, Any]:
    """Load an exported file into the model, and compare with what recovery brings back."""

    class Compare(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:  # behind TranLogs, which has recovered
            self.recovered = [bits(v) for v in [*self.model.trainable_variables, *self.model.optimizer.variables]]
            raise Stop

    fresh, other = (made(optimizer, model, jit=jit) for _ in range(2))
    for one in (fresh, other):
        one.optimizer.build(one.trainable_variables)
    fresh.load_weights(path)
    compare = Compare()
    try:
        other.fit(**given("arrays"), epochs=EPOCHS, verbose=0, callbacks=[logged(run), compare])
    except Stop:
        pass
    loaded = [bits(v) for v in [*fresh.trainable_variables, *fresh.optimizer.variables]]
    return {"optimizer_step": int(fresh.optimizer.iterations), "same_as_resumed": loaded == compare.recovered}


def loads_model(path: str) -> list[int]:
    """Load a whole model and predict with it."""
    model = keras.models.load_model(path)
    return list(model.predict(digits()[0][:13], verbose=0).shape)
