"""What a redone step of Keras' `fit` costs over a computed one, and what a kill loses.

One process for each backend, since Keras chooses its backend as it is imported. Redone steps are those of a fit that an
exception has cut short and another model resumes: what one of them costs, and the whole replay with what is traced once. They
are compared with the steps of fits without a log; each step's loss is read, as a progress bar does.
Kills (on TensorFlow): SIGKILL at a random batch; then the same script again, until it has trained a batch that the dead
process had not. Lost are the batches that are trained again before that one. What a logged step costs over a plain one is
measured by bench_keras.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from bench_keras import environment
from harness import Circumstances, ask_child, command_line, measured_folder, write_results

BACKENDS = ("tensorflow", "torch", "jax")
_NEVER = 10**9  # steps between checkpoints
_BATCHES, _EPOCHS = 50, 40  # batches an epoch, where processes are killed
_SAVE_FREQ = 20  # batches between the backups of BackupAndRestore
_SECONDS_MAX = 120.0  # that one process may take to the batch that is waited for


@dataclass(frozen=True, slots=True)
class Case:
    """A model to train.

    Attributes:
        name: of the case.
        build: makes the model, compiled.
        shape: of a sample.
        batch: samples in one.
        steps: of a fit.
        dropped: steps at its beginning that are not counted.
        fits: that are computed to compare with.
        redone: steps before a fit is cut short.
        settings: of the callback.
    """

    name: str
    build: Callable[[], Any]
    shape: tuple[int, ...]
    batch: int
    steps: int
    dropped: int
    fits: int
    redone: int
    settings: dict[str, Any]

    def arrays(self, steps: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Samples and labels for some steps."""
        rng = np.random.default_rng(0)
        count = steps * self.batch
        return rng.standard_normal((count, *self.shape), np.float32), rng.integers(0, 10, count)


def cnn() -> Any:
    """0.03 M parameters: what is measured is what a step costs whatever its size."""
    from keras import layers

    return _compiled(
        [
            layers.Input((16, 16, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(20, activation="relu"),
            layers.Dense(10),
        ]
    )


def mlp() -> Any:
    """10.5 M parameters: 42 MB of gradients a step."""
    from keras import layers

    wide = [layers.Dense(2048, activation="relu") for _ in range(3)]
    return _compiled([layers.Input((1024,)), *wide, layers.Dense(10)])


def _compiled(found: list[Any]) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential(found)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


CASES = (
    Case("cnn", cnn, (16, 16, 3), 32, 80, 20, 5, 120, {"log": "gradients"}),
    Case("mlp", mlp, (1024,), 128, 16, 6, 3, 12, {"log": "gradients", "fingerprint": "sample"}),
)


# The process of one backend.


class Cut(Exception):
    """Ends a fit."""


def measure_backend(*, quick: bool) -> dict[str, Any]:
    """All cases on the backend that Keras runs on: seconds of computed and of redone steps."""
    found: dict[str, Any] = {}
    for case in CASES:
        if quick:
            case = replace(case, steps=case.steps * 3 // 4, fits=1, redone=case.redone // 2)
        model = case.build()
        computed = [s for _ in range(case.fits) for s in _fit(case, model, case.steps, [])[case.dropped :]]
        with measured_folder() as folder:
            redone = _redone(case, Path(folder) / "redone")
        redone["computed"] = statistics.median(computed)
        found[case.name] = {"parameters": model.count_params(), **redone}
    return found


def _redone(case: Case, run: Path) -> dict[str, Any]:
    """Cut a fit short, and resume it with another model: seconds of the replay, and of one step in it."""
    try:
        _fit(case, case.build(), case.redone + 2, [_callback(run, **case.settings)], cut_after=case.redone)
    except Cut:
        pass
    callback = _callback(run, **case.settings)
    with _redo_watched() as begun:
        _fit(case, case.build(), case.redone + 2, [callback])
    report = callback.report
    assert report.exact is not False, report
    assert len(begun) == report.replayed > 2, report
    redone = statistics.median(b - a for a, b in pairwise(begun[1:]))
    return {"replayed": report.replayed, "seconds_replay": report.seconds_replay, "redone": redone}


@contextmanager
def _redo_watched() -> Iterator[list[float]]:
    """When each redone step began."""
    import tranlogs_keras.replay.redo

    begun: list[float] = []
    update = tranlogs_keras.replay.redo._update

    def watched(*given: Any) -> Any:
        begun.append(time.perf_counter())
        return update(*given)

    tranlogs_keras.replay.redo._update = watched
    try:
        yield begun
    finally:
        tranlogs_keras.replay.redo._update = update


def _callback(run: Path, **settings: Any) -> Any:
    from tranlogs_keras import TranLogsCallback

    return TranLogsCallback(run, durability="process", checkpoint_every=_NEVER, verbose=False, **settings)


def _fit(case: Case, model: Any, steps: int, callbacks: list[Any], *, cut_after: int | None = None) -> list[float]:
    """One epoch of so many steps; how long each but the first took, from the end of the one before."""
    import keras

    ends: list[float] = []

    def look(batch: int, logs: Any) -> None:
        float(logs["loss"])
        ends.append(time.perf_counter())
        if len(ends) == cut_after:
            raise Cut

    x, y = case.arrays(steps)
    clock = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    model.fit(x, y, batch_size=case.batch, verbose=0, callbacks=[*callbacks, clock])
    return [b - a for a, b in pairwise(ends)]


# A process that is killed.


def train(which: str, folder: Path, progress: Path) -> None:
    """Many epochs of the small model; a line for each batch: its number from the beginning of training, and the time."""
    import keras

    case, model = CASES[0], cnn()
    file = os.open(progress, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    begun: list[int] = []
    tell = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begun.append(epoch),
        on_train_batch_end=lambda batch, logs: os.write(file, f"{begun[-1] * _BATCHES + batch} {time.time()}\n".encode()),
    )
    protect: Any
    if which == "tranlogs":
        from tranlogs_keras import TranLogsCallback

        protect = TranLogsCallback(folder, verbose=False)
    else:
        protect = keras.callbacks.BackupAndRestore(str(folder), save_freq=_SAVE_FREQ)
    x, y = case.arrays(_BATCHES)
    model.fit(x, y, batch_size=case.batch, epochs=_EPOCHS, verbose=0, callbacks=[protect, tell])


def measure_kills(*, quick: bool) -> dict[str, Any]:
    """Batches lost, and seconds from the script's start to the first new batch."""
    chance = random.Random(0)
    at = [chance.randrange(_SAVE_FREQ, 4 * _BATCHES) for _ in range(1 if quick else 3)]
    found: dict[str, Any] = {}
    for which in ("tranlogs", "BackupAndRestore"):
        with measured_folder() as folder:
            told = [_kill(which, Path(folder) / str(i), batch) for i, batch in enumerate(at)]
        found[which] = {key: [one[key] for one in told] for key in told[0]}
    return found


def _kill(which: str, folder: Path, batch: int) -> dict[str, Any]:
    """Kill once the batch is done, and run the script again."""
    folder.mkdir()
    begun, done = _until(which, folder, folder / "first", batch)
    last = done[-1][0]
    begun_again, again = _until(which, folder, folder / "second", last + 1)
    new = next(moment for number, moment in again if number > last)
    return {
        "killed_after": last + 1,
        "lost": last + 1 - again[0][0],
        "seconds": new - begun_again,
        "seconds_to_any": again[0][1] - begun_again,
        "seconds_fresh": done[0][1] - begun,
    }


def _until(which: str, folder: Path, progress: Path, batch: int) -> tuple[float, list[tuple[int, float]]]:
    """Run the script until a batch is done, and kill it: when it began, and all batches that it has done."""
    begun = time.time()
    command = [sys.executable, __file__, "--train", which, str(folder / "run"), str(progress)]
    with open(progress.with_suffix(".txt"), "w") as output:
        process = subprocess.Popen(command, env=environment("tensorflow"), stdout=output, stderr=output)
    while not any(number >= batch for number, _ in _batches(progress)):
        if process.poll() is not None or time.time() > begun + _SECONDS_MAX:
            process.kill()
            raise SystemExit(f"{which}: no batch {batch}: {progress.with_suffix('.txt').read_text()[-3000:]}")
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return begun, _batches(progress)


def _batches(progress: Path) -> list[tuple[int, float]]:
    lines = progress.read_text().splitlines() if progress.exists() else []
    return [(int(number), float(moment)) for number, moment in (line.split() for line in lines)]


# The process that asks all others.


def measure(*, quick: bool = False, backends: tuple[str, ...] = BACKENDS) -> dict[str, Any]:
    """All of it, as a table and for the JSON."""
    found: dict[str, Any] = {}
    for backend in backends:
        cases = ask_child(__file__, "--measure", *["--quick"] * quick, environment=environment(backend))
        found[backend] = {name: _told(backend, name, case) for name, case in cases.items()}
    if "tensorflow" in backends:
        found["kills"] = measure_kills(quick=quick)
        _tell_kills(found["kills"])
    return found


def _told(backend: str, name: str, case: dict[str, Any]) -> dict[str, Any]:
    """Print a case, and add its ratios."""
    print(f"{backend}, {name}, {case['parameters'] / 1e6:.2f} M parameters")
    case["redone_over_computed"] = case["redone"] / case["computed"]
    case["replay_over_computed"] = case["seconds_replay"] / case["replayed"] / case["computed"]
    print(
        f"  redone {case['redone'] * 1e3:.1f} ms a step: {case['redone_over_computed']:.2f} of computing; {case['replayed']} "
        f"steps in {case['seconds_replay']:.1f} s with what is traced once: {case['replay_over_computed']:.2f}",
        flush=True,
    )
    return case


def _tell_kills(kills: dict[str, Any]) -> None:
    print(f"tensorflow, cnn, SIGKILL at a random batch; {_BATCHES} batches an epoch")
    for which, told in kills.items():
        print(
            f"  {which:18s} batches lost {told['lost']} (killed after {told['killed_after']}); seconds to the first new one "
            f"{[round(s, 1) for s in told['seconds']]} (a fresh start: {[round(s, 1) for s in told['seconds_fresh']]})"
        )


def main() -> None:
    parser = command_line(__doc__, "few rounds: checks the script, not the claim", out="keras_recovery")
    parser.add_argument("--backends", type=lambda text: tuple(text.split(",")), default=BACKENDS, help="separated by commas")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        which, folder, progress = arguments.train
        train(which, Path(folder), Path(progress))
        return
    if arguments.measure:
        print(json.dumps(measure_backend(quick=arguments.quick)))
        return
    unknown = set(arguments.backends) - set(BACKENDS)
    if unknown:
        parser.error(f"no such backend: {', '.join(sorted(unknown))}")
    begun = Circumstances()
    results = measure(quick=arguments.quick, backends=arguments.backends)
    write_results(arguments.out, results, begun)


if __name__ == "__main__":
    main()
