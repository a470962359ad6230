"""What a log costs a step of Hugging Face Trainer and of Lightning.

An arm is a whole fit of the same small model on the same random data; fits take turns in one process. A step's time goes from
its beginning to that of the next one, taken by a small callback that all arms have. The first steps of a fit do not count:
there the trainer warms up and the log fills fresh files; then checkpoints let go of log files, which are used again. One arm is
the floor: the least that any log of gradients costs here (cost_floor.py).
"""

from __future__ import annotations

import gc
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from cost_floor import FLOOR_BYTES, FloorLog
from harness import command_line, measured_folder
from paired_timing import FLOOR, MACHINE, PLAIN, Block, compare, take_turns, tell
from training_cases import layers

Fit = Callable[[int, "list[Any]"], "list[float]"]
"""Trains some steps with some callbacks; returns when each step began."""

_LOG: dict[str, Any] = {
    "log": "gradients",
    "checkpoint_every": 25,
    "keep": 1,
    "segment_bytes": 16 << 20,
    "verbose": False,
    "on_signal": None,
}
_VOCABULARY, _LENGTH, _BATCH = 512, 48, 8


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Logged over plain steps, by trainer."""
    found: dict[str, Any] = {"cases": []}
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, (package, fit, callback, floor) in _TRAINERS.items():
        if find_spec(package) is None:
            print(f"  {name}: left out, {package} is not installed", flush=True)
            continue
        steps, dropped = (12, 6) if quick else (120, 60)
        with measured_folder() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = Path(folder) / "run"
            makers = {MACHINE: partial(callback(), run, **_LOG), FLOOR: partial(floor(), Path(folder) / "floor")}
            fits = partial(_block, partial(fit(), steps))
            blocks = {arm: partial(fits, makers.get(arm), run, dropped) for arm in (PLAIN, MACHINE, FLOOR)}
            told = _compared(blocks, rounds=1 if quick else 6, seconds_max=45.0)
        found["cases"].append({"case": name, "arms": told})
        tell(name, told)
    torch.set_num_threads(threads_before)
    return found


def _compared(blocks: dict[str, Block], *, rounds: int, seconds_max: float) -> dict[str, Any]:
    blocks[PLAIN]()  # what is imported and made once
    times = take_turns(blocks, rounds, seconds_max=seconds_max)
    return {arm: compare(times, arm) for arm in times}


def _block(
    fit: Callable[[list[Any]], list[float]],
    make_callback: Callable[[], Any] | None,
    run: Path,
    dropped: int,
) -> list[float]:
    gc.collect()
    begun = fit([] if make_callback is None else [make_callback()])
    shutil.rmtree(run, ignore_errors=True)
    return [after - before for before, after in pairwise(begun)][dropped:]


def _huggingface() -> Fit:
    import transformers

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.begun: list[float] = []

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.begun.append(perf_counter())

    transformers.utils.logging.set_verbosity_error()
    chance = torch.Generator().manual_seed(1)
    texts = torch.randint(0, _VOCABULARY, (256, _LENGTH), generator=chance)
    data = [{"input_ids": text, "labels": text} for text in texts]

    def fit(steps: int, callbacks: list[Any]) -> list[float]:
        transformers.set_seed(0)
        config = transformers.GPT2Config(vocab_size=_VOCABULARY, n_positions=_LENGTH, n_embd=128, n_layer=2, n_head=4)
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder,
                max_steps=steps,
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
        return clock.begun

    return fit


def _lightning() -> Fit:
    import logging

    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    chance = torch.Generator().manual_seed(1)
    count = 64 * 128
    data = TensorDataset(torch.randn(count, 256, generator=chance), torch.randint(0, 10, (count,), generator=chance))

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

    def fit(steps: int, callbacks: list[Any]) -> list[float]:
        pl.seed_everything(0, verbose=False)
        clock = Clock()
        trainer = pl.Trainer(
            max_steps=steps,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            callbacks=[clock, *callbacks],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Perceptron(), DataLoader(data, batch_size=64, shuffle=True))
        return clock.begun

    return fit


def _huggingface_callback() -> Any:
    from tranlogs_torch.trainers.huggingface import TranLogsTrainerCallback

    return TranLogsTrainerCallback


def _lightning_callback() -> Any:
    from tranlogs_torch.trainers.lightning import TranLogsLightningCallback

    return TranLogsLightningCallback


def _huggingface_floor() -> Any:
    import transformers

    class Floor(transformers.TrainerCallback):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            self._path = path
            self._logs: list[FloorLog] = []

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            optimizer = kwargs["optimizer"]
            self._logs = [FloorLog(self._path, [getattr(optimizer, "optimizer", optimizer)], FLOOR_BYTES)]

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._logs.pop().close()

    return Floor


def _lightning_floor() -> Any:
    import lightning.pytorch as pl

    class Floor(pl.Callback):
        def __init__(self, path: Path) -> None:
            self._path = path
            self._logs: list[FloorLog] = []

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self._logs = [FloorLog(self._path, trainer.optimizers, FLOOR_BYTES)]

        def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
            self._logs[0].before(optimizer)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self._logs.pop().close()

    return Floor


_TRAINERS: dict[str, tuple[str, Callable[[], Fit], Callable[[], Any], Callable[[], Any]]] = {
    "Hugging Face Trainer, GPT-2 of 0.5 M": ("transformers", _huggingface, _huggingface_callback, _huggingface_floor),
    "Lightning, MLP of 0.8 M": ("lightning", _lightning, _lightning_callback, _lightning_floor),
}


if __name__ == "__main__":
    measure(quick=command_line(__doc__).parse_args().quick)
