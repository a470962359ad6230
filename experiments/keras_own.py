"""One kill under Keras' BackupAndRestore and one under TranLogs: steps lost, and whether the end is that of an unkilled run.

    python experiments/keras_own.py [--quick] [--out FILE]

A `fit` has 60 steps (20 an epoch), a save every ten, and dies by SIGKILL as step 38 begins; then it is started again. Digits of
scikit-learn, a network with dropout, shuffled batches; one process, on the CPU.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from harness import Circumstances, ask_child, command_line, write_results

STEPS, EPOCHS, EVERY, DEATH, BATCH = 60, 3, 10, 37, 10


def train(folder: Path, own: bool, log: bool, kill: bool) -> dict[str, Any]:
    import keras
    from sklearn.datasets import load_digits

    begun: list[int] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            begun.append(int(self.model.optimizer.iterations))
            if kill and begun[-1] == DEATH:
                os.kill(os.getpid(), signal.SIGKILL)

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(64),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )
    model.compile(keras.optimizers.AdamW(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks: list[Any] = []
    if own:
        callbacks.append(keras.callbacks.BackupAndRestore(str(folder / "own"), save_freq=EVERY))
    if log:
        from tranlogs_keras import TranLogsCallback

        callbacks.append(TranLogsCallback(folder / "run", checkpoint_every=EVERY, data_order="keras", verbose=False))
    watch = Watch()
    digits, count = load_digits(), STEPS // EPOCHS * BATCH
    x, y = (digits.data[:count] / 16).astype(np.float32), digits.target[:count]
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=True, verbose=0, callbacks=[*callbacks, watch])
    found = xxhash.xxh3_64()
    for variable in [*model.weights, *model.optimizer.variables]:
        found.update(np.ascontiguousarray(variable).tobytes())
    return {"begun_at": begun[0], "digest": found.hexdigest()}


def start(folder: Path, *options: str) -> dict[str, Any] | None:
    """One process; None if it was killed."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found: dict[str, Any] | None = ask_child(__file__, "--child", folder, *options, environment=environment)
    return found


def measure() -> Iterator[dict[str, Any]]:
    """Uninterrupted, then killed and started again: by its own checkpoints, and by TranLogs."""
    with tempfile.TemporaryDirectory() as folder:
        whole = start(Path(folder) / "whole")
        assert whole is not None
        for option, by in (("own", "its own checkpoints"), ("log", "TranLogs")):
            place = Path(folder) / option
            assert start(place, option, "kill") is None, "it was to die"
            again = start(place, option)
            assert again is not None
            yield {
                "trainer": "keras",
                "by": by,
                "died_in_step": DEATH + 1,
                "went_on_after_step": again["begun_at"],
                "finished_steps_lost": DEATH - again["begun_at"],
                "exact": again["digest"] == whole["digest"],
            }


def main() -> None:
    parser = command_line(__doc__, "the same: it takes a minute", out="trainers")
    parser.add_argument("--child", nargs="+")
    given = parser.parse_args()
    if given.child:
        folder, *options = given.child
        print(json.dumps(train(Path(folder), "own" in options, "log" in options, "kill" in options)))
        return
    begun, rows = Circumstances(), []
    for row in measure():
        rows.append(row)
        print(json.dumps(row), flush=True)
    write_results(given.out, {"rows": rows}, begun)


if __name__ == "__main__":
    main()
