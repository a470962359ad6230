"""What a log costs a step of Hugging Face Trainer, of Lightning and of Keras' `fit`.

An arm is a whole fit of the same small model on the same data; fits take turns in one process. The first steps of a fit do not
count: there the trainer warms up and the log fills fresh files; then checkpoints let go of log files, which are used again. One
arm is the floor: the least that any log of gradients costs here (cost_floor.py).

A step of the Trainer and of Lightning goes from its beginning to that of the next one. Of Keras, epochs are timed: a callback
with a hook of batches may write to the model, and TranLogs looks before each batch whether it did. Keras chooses its backend as
it is imported, so each backend has a process. One arm is as TranLogs comes: its first epoch finds out what gradients cost. The
floor is less than elsewhere: as many bytes as the gradients have are hashed and written behind each step, and as many as the
variables have are hashed, but they are not taken from the step.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from cost_floor import FloorFile, FloorLog
from harness import ask_child, measured_folder
from paired_timing import AUTO, FLOOR, MACHINE, PLAIN, compare, take_turns, tell

_FLOOR_BYTES = 32 << 20
_LOG: dict[str, Any] = {"checkpoint_every": 25, "keep": 1, "segment_bytes": 16 << 20, "verbose": False, "on_signal": None}
_VOCABULARY, _LENGTH, _BATCH = 512, 48, 8
_BACKENDS = {  # backend, jit_compile
    "TensorFlow graph": ("tensorflow", False),
    "TensorFlow XLA": ("tensorflow", True),
    "torch": ("torch", False),
    "JAX": ("jax", True),
}
_KERAS_BATCH = 64


def trainers(*, quick: bool) -> dict[str, Any]:
    """Return logged over plain steps, by trainer; one that is not installed is left out."""
    kinds = {
        "Hugging Face Trainer, GPT-2 of 0.5 M": ("transformers", _huggingface),
        "Lightning, MLP of 0.8 M": ("lightning", _lightning),
    }
    found: dict[str, Any] = {"cases": []}
    for name, (package, take_all) in kinds.items():
        if find_spec(package) is not None:
            arms = ask_child(take_all, quick)
            found["cases"].append({"case": name, "arms": arms})
            tell(name, arms)
    return found


def keras(*, quick: bool) -> dict[str, Any]:
    """Return logged over plain steps, by backend."""
    found: dict[str, Any] = {"cases": []}
    for name in ("JAX",) if quick else _BACKENDS:  # each costs ten seconds of imports
        case = f"Keras on {name}, MLP of 0.5 M"
        arms = ask_child(_keras, *_BACKENDS[name], quick)
        found["cases"].append({"case": case, "arms": arms})
        tell(case, arms)
    return found


def _compare_fits(
    fit: Callable[[list[Any]], list[float]], logs: dict[str, Callable[..., Any]], floor: Callable[[Path], Any], quick: bool
) -> dict[str, Any]:
    """Compare arms: `fit` trains with some callbacks and returns the seconds of steps that count."""

    def block(arm: str) -> list[float]:
        gc.collect()
        with measured_folder() as folder:
            if arm in logs:
                log = "auto" if arm == AUTO else "gradients"
                return fit([logs[arm](Path(folder) / "run", log=log, **_LOG)])
            return fit([floor(Path(folder) / "floor")] if arm == FLOOR else [])

    block(PLAIN)  # what is imported and made once
    arms = {arm: partial(block, arm) for arm in (PLAIN, *logs, FLOOR)}
    times = take_turns(arms, 1 if quick else 6, seconds_max=45.0)
    return {arm: compare(times, arm) for arm in times}


def _steps(begun: list[float], quick: bool) -> list[float]:
    return [after - before for before, after in pairwise(begun)][6 if quick else 60 :]


def _huggingface(quick: bool) -> dict[str, Any]:
    import torch
    import transformers

    from tranlogs_torch.trainers.huggingface import TranLogsTrainerCallback

    class Clock(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.begun: list[float] = []

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.begun.append(perf_counter())

    class Floor(transformers.TrainerCallback):
        def __init__(self, path: Path) -> None:
            self._path = path

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            optimizer = kwargs["optimizer"]
            self._log = FloorLog(self._path, [getattr(optimizer, "optimizer", optimizer)], _FLOOR_BYTES)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._log.close()

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    chance = torch.Generator().manual_seed(1)
    texts = torch.randint(0, _VOCABULARY, (256, _LENGTH), generator=chance)
    data = [{"input_ids": text, "labels": text} for text in texts]

    def fit(callbacks: list[Any]) -> list[float]:
        transformers.set_seed(0)
        config = transformers.GPT2Config(vocab_size=_VOCABULARY, n_positions=_LENGTH, n_embd=128, n_layer=2, n_head=4)
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder,
                max_steps=12 if quick else 120,
                per_device_train_batch_size=_BATCH,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                use_cpu=True,
                disable_tqdm=True,
            )
            model = transformers.GPT2LMHeadModel(config)
            trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[clock, *callbacks])
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
        return _steps(clock.begun, quick)

    return _compare_fits(fit, {MACHINE: TranLogsTrainerCallback}, Floor, quick)


def _lightning(quick: bool) -> dict[str, Any]:
    import lightning.pytorch as pl
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from training_cases import layers

    from tranlogs_torch.trainers.lightning import TranLogsLightningCallback

    class Perceptron(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = layers([256, 768, 768, 10])

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Clock(pl.Callback):
        def __init__(self) -> None:
            self.begun: list[float] = []

        def on_train_batch_start(self, *given: Any) -> None:
            self.begun.append(perf_counter())

    class Floor(pl.Callback):
        def __init__(self, path: Path) -> None:
            self._path = path

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self._log = FloorLog(self._path, trainer.optimizers, _FLOOR_BYTES)

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            self._log.before(optimizer)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self._log.close()

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    chance = torch.Generator().manual_seed(1)
    count = 64 * 128
    data = TensorDataset(torch.randn(count, 256, generator=chance), torch.randint(0, 10, (count,), generator=chance))

    def fit(callbacks: list[Any]) -> list[float]:
        pl.seed_everything(0, verbose=False)
        clock = Clock()
        trainer = pl.Trainer(
            max_steps=12 if quick else 120,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            callbacks=[clock, *callbacks],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Perceptron(), DataLoader(data, batch_size=64, shuffle=True))
        return _steps(clock.begun, quick)

    return _compare_fits(fit, {MACHINE: TranLogsLightningCallback}, Floor, quick)


def _keras(backend: str, jit: bool, quick: bool) -> dict[str, Any]:
    os.environ |= {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    import keras

    from tranlogs_keras import TranLogsCallback

    if backend == "torch":
        import torch

        torch.set_num_threads(1)

    class Floor(keras.callbacks.Callback):
        def __init__(self, path: Path) -> None:
            super().__init__()
            self._path = path

        def on_train_begin(self, logs: Any = None) -> None:
            self._file = FloorFile(self._path, _FLOOR_BYTES)
            zeros = [np.zeros(math.prod(variable.shape) * 4, np.uint8) for variable in self.model.trainable_variables]
            self._views = [each.data for each in zeros]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._file.wait()
            self._file.finish(self._views)
            self._file.begin(self._views)

        def on_train_end(self, logs: Any = None) -> None:
            self._file.close()

    steps, epochs = (5, 2) if quick else (60, 4)
    chance = np.random.default_rng(0)
    x = chance.standard_normal((steps * _KERAS_BATCH, 784), np.float32)
    y = chance.integers(0, 10, steps * _KERAS_BATCH)

    def fit(callbacks: list[Any]) -> list[float]:
        """Fit a fresh model; return the seconds of a step in each epoch but the first, in the mean."""
        keras.utils.set_random_seed(0)
        dense = keras.layers.Dense
        model = keras.Sequential([keras.Input((784,)), dense(512, activation="relu"), dense(256, activation="relu"), dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adamw", loss, metrics=["accuracy"], jit_compile=jit)
        begun: list[float] = []
        ended: list[float] = []
        clock = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: begun.append(perf_counter()),
            on_epoch_end=lambda epoch, logs: ended.append(perf_counter()),
        )
        model.fit(x, y, batch_size=_KERAS_BATCH, epochs=epochs, verbose=0, callbacks=[clock, *callbacks])
        del model
        keras.utils.clear_session()
        return [(end - begin) / steps for begin, end in zip(begun[1:], ended[1:], strict=True)]

    return _compare_fits(fit, {MACHINE: TranLogsCallback, AUTO: TranLogsCallback}, Floor, quick)
