"""One kill under Keras' BackupAndRestore and one under TranLogs: steps lost, and whether the end is that of an unkilled run.

    python experiments/keras_own.py [--quick] [--out FILE]

A `fit` has 60 steps (20 an epoch), a save every ten, and dies by SIGKILL as step 38 begins; then it is started again. Digits of
scikit-learn, a network with dropout, shuffled batches; one process, on the CPU. It takes a minute, with --quick, too.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from harness import ask_child, take

STEPS, EPOCHS, EVERY, DEATH, BATCH = 60, 3, 10, 37, 10


def train(folder: Path, by: str, kill: bool) -> tuple[int, str]:
    """Train to the end, or to death; return the step that it began with, and a digest of the state in the end."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read as the backend is imported
    import keras
    import numpy as np
    import xxhash
    from sklearn.datasets import load_digits

    begun: list[int] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            begun.append(int(self.model.optimizer.iterations))
            if kill and begun[-1] == DEATH:
                os.kill(os.getpid(), signal.SIGKILL)

    keras.utils.set_random_seed(0)
    layers = keras.layers
    inner = [layers.Dense(64), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.3)]
    model = keras.Sequential([keras.Input((64,)), *inner, layers.Dense(10)])
    model.compile(keras.optimizers.AdamW(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks: list[Any] = []
    if by == "its own checkpoints":
        callbacks.append(keras.callbacks.BackupAndRestore(str(folder / "own"), save_freq=EVERY))
    else:
        from tranlogs_keras import TranLogsCallback

        settings: dict[str, Any] = {"log": "gradients", "checkpoint_every": EVERY, "data_order": "keras"}
        callbacks.append(TranLogsCallback(folder / "run", verbose=False, **settings))
    digits, count = load_digits(), STEPS // EPOCHS * BATCH
    x, y = (digits.data[:count] / 16).astype(np.float32), digits.target[:count]
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=True, verbose=0, callbacks=[*callbacks, Watch()])
    found = xxhash.xxh3_64()
    for variable in [*model.weights, *model.optimizer.variables]:
        found.update(np.ascontiguousarray(variable).tobytes())
    return begun[0], found.hexdigest()


def measure(*, quick: bool) -> dict[str, Any]:
    """By Keras' own checkpoints and by TranLogs: train without interruption; then train, kill and start again."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for by in ("its own checkpoints", "TranLogs"):
            _, whole = ask_child(train, Path(folder) / "whole", by, False)
            assert ask_child(train, Path(folder), by, True) is None, "it was to die"
            went_on_after, digest = ask_child(train, Path(folder), by, False)
            row = {"trainer": "keras", "by": by, "finished_steps_lost": DEATH - went_on_after, "exact": digest == whole}
            print(f"  {row}", flush=True)
            rows.append(row)
    return {"rows": rows}


if __name__ == "__main__":
    take(__doc__, "trainers", measure)
