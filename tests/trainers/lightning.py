"""Trainings with Lightning: a small network on scikit-learn's digits."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.kills.pytorch import Job
from tests.trainers.common import said_of, tell
from tranlogs_torch.trainers.lightning import TranLogsLightningCallback

KEPT = {"seen", "curve", "training_step_outputs", "_newest", "_of_digit", "mean", "tally"}
BATCHES = 7  # an epoch, on each process


def loaders(kind: str = "shuffled", world: int = 1) -> tuple[Any, Any]:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    count = 6 * BATCHES * world
    train, test = TensorDataset(x[:count], y[:count]), TensorDataset(x[count : count + 20], y[count : count + 20])
    first = DataLoader(train, batch_size=6, shuffle=True, collate_fn=noisy if kind == "noisy" else None)
    return first, DataLoader(test, batch_size=10)


def noisy(samples: list[Any]) -> list[torch.Tensor]:
    """Collate, with random numbers of all three generators."""
    x = torch.stack([sample[0] for sample in samples])
    return [x + torch.rand(()) * 0.1 + random.random() * 0.1 + np.random.rand() * 0.1, torch.stack([s[1] for s in samples])]


class Digits(pl.LightningModule):
    job: Job  # of the class: it is no state of a training

    def __init__(self, mode: str, schedule: str, averages: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10))
        self.automatic_optimization = mode == "automatic"
        self.mode, self.schedule, self.averages, self.seen = mode, schedule, averages, []

        self.weight, self.steps = 1.0, 0

    def training_step(self, batch: Any, i: int) -> Any:
        self.job.at(f"batch {self.trainer.fit_loop.epoch_loop.batch_progress.total.ready - 1}")
        self.steps += 1
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1]) * self.weight / (1 + self.steps % 3)
        self.seen.append([self.current_epoch, i, self.global_step])
        self.log("step_loss", loss, on_step=True, on_epoch=self.averages)
        if not self.automatic_optimization:
            chosen = self.optimizers()
            for number, optimizer in enumerate(chosen if isinstance(chosen, list) else [chosen]):
                if number and i % 2:
                    continue  # the second one every other batch
                optimizer.zero_grad()
                self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
                optimizer.step()
            self.lr_schedulers().step()
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.job.at(f"step {self.global_step}")

    def on_train_epoch_start(self) -> None:
        torch.rand(1)
        self.weight = 0.5**self.current_epoch  # not called again amid an epoch

    def validation_step(self, batch: Any, i: int) -> None:
        self.job.at(f"validation {self.global_step}")
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]) + 0 * random.random(), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        self.job.at(f"epoch end {self.current_epoch}")

    def configure_optimizers(self) -> Any:
        if self.mode == "two":
            first, second = (
                torch.optim.AdamW(self.net[:2].parameters(), lr=1e-2),
                torch.optim.SGD(self.net[2:].parameters(), lr=0.05),
            )
            return [first, second], [torch.optim.lr_scheduler.StepLR(first, 4, 0.8)]
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.schedule == "plateau":
            scheduler: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.7, threshold=0.3)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2 if self.schedule == "epoch" else 5, 0.7)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.schedule}}


class Collecting(Digits):
    """Collects outputs until the end of each epoch, and keeps means in attributes; training depends on all of them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.training_step_outputs: list[dict[str, Any]] = []
        self.table = np.arange(100.0)  # never changes
        self.curve = [0.5] * 1020  # becomes one of the long lists, which are stored in blocks
        self._newest: deque[float] = deque(maxlen=3)
        self._of_digit: defaultdict[int, list[float]] = defaultdict(list)

    def on_train_start(self) -> None:
        self.mean = torch.ones(())  # behind a restart this is called again
        self.tally = np.zeros(10)

    def training_step(self, batch: Any, i: int) -> Any:
        loss = super().training_step(batch, i) * self.mean * (1 + len(self.training_step_outputs))
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        self.tally[batch[1].numpy()] += 1
        self.training_step_outputs.append({"loss": loss.detach(), "size": len(batch[1])})
        self._newest.append(loss.item())
        self.curve.append(loss.item())
        self._of_digit[int(batch[1][0])].append(loss.item())
        return loss + sum(self._newest)

    def on_train_epoch_end(self) -> None:
        self.weight *= float(torch.stack([one["loss"] for one in self.training_step_outputs]).mean())
        self.training_step_outputs.clear()
        super().on_train_epoch_end()


class Meter:
    """An object with a state."""

    def __init__(self) -> None:
        self.count = 0


class Forgetful(Digits):
    """Keeps a count in an object, which cannot be stored."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.meter, self.unused_meter = Meter(), Meter()

    def on_fit_start(self) -> None:
        self.made_by_each_start = Meter()

    def training_step(self, batch: Any, i: int) -> Any:
        self.meter.count += 1
        return super().training_step(batch, i)


class Keeps(Callback):  # type: ignore[misc]
    """Keeps something where only a checkpoint of Lightning's would hold it."""

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["kept"] = 1


class Counts(Callback):  # type: ignore[misc]
    """Counts in an attribute, in an object, which cannot be stored, and in a list of the module."""

    def __init__(self) -> None:
        self.ended, self.meter = 0, Meter()

    def on_train_batch_end(self, *given: Any) -> None:
        self.ended += 1
        self.meter.count += 1
        ended.append(self.ended)


ended: list[int] = []


QUIET: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}


def train(
    job: Job,
    *,
    kind: type[Digits] = Digits,
    mode: str = "automatic",
    schedule: str = "step",
    data: str = "shuffled",
    averages: bool = False,
    saves: bool = False,
    beside: tuple[Callable[[], Callback], ...] = (),
    **arguments: Any,
) -> None:
    """Train to the end; `beside` makes further callbacks."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    pl.seed_everything(3, verbose=False)
    Digits.job = job
    model = kind(mode, schedule, averages)
    callbacks = [make() for make in beside]
    if saves:
        callbacks.append(ModelCheckpoint(job.folder / "saved", monitor="val_loss", save_top_k=2))
    if job.run is not None:
        callback = TranLogsLightningCallback(str(job.run), **job.settings)
        job.watch(lambda: callback.report)
        callbacks.append(callback)
    settings = QUIET | {"devices": world, "logger": False, "enable_checkpointing": saves, "max_epochs": 3}
    trainer = pl.Trainer(callbacks=callbacks, **settings | arguments)
    trainer.fit(model, *loaders(data, world))
    job.keep(model=model, **{f"optimizer {number}": one for number, one in enumerate(trainer.optimizers)})
    job.keep(schedulers=[config.scheduler.state_dict() for config in trainer.lr_scheduler_configs])
    job.keep(progress=[trainer.global_step, trainer.current_epoch], loops=trainer.fit_loop.state_dict(), last=model.seen[-1:])
    job.keep(counters=[one.wait_count for one in callbacks if isinstance(one, EarlyStopping)])
    job.keep(best=[one.best_model_score for one in callbacks if isinstance(one, ModelCheckpoint)])
    job.keep(metrics={name: value.item() for name, value in trainer.callback_metrics.items()})
    job.keep(kept=repr([(name, kept) for name, kept in sorted(vars(model).items()) if name in KEPT]))


def told(job: Job) -> None:
    """Train with Lightning's own folders and logger; tell what was said by Lightning and TranLogs, and the checkpoints."""
    lines: list[str] = []
    root = logging.getLogger("lightning.pytorch")
    root.propagate, root.handlers = False, [_Lines(lines)]
    logging.getLogger("tranlogs").addHandler(_Lines(lines))
    Digits.job, folder = job, job.folder / "output"
    starts = []
    for _ in range(2 if job.run else 1):  # the second start finds a finished training
        pl.seed_everything(3, verbose=False)
        best = ModelCheckpoint(monitor="val_loss", save_top_k=2)
        callbacks: list[Any] = [best]
        if job.run:
            callbacks += [Keeps(), TranLogsLightningCallback(str(job.run), checkpoint_every=5, durability="process")]
        out = io.StringIO()
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(out):
            warnings.simplefilter("always")
            settings = QUIET | {"logger": CSVLogger(folder), "default_root_dir": folder, "max_epochs": 4}
            pl.Trainer(callbacks=callbacks, **settings).fit(Digits("automatic", "step", False), *loaders())
        starts.append(out.getvalue())
        lines += [str(one.message) for one in caught]
        checkpoints = {
            "best": {os.path.relpath(path, folder): float(score) for path, score in best.best_k_models.items()},
            "paths": [path and os.path.relpath(path, folder) for path in (best.best_model_path, best.kth_best_model_path)],
            "score": float(best.best_model_score),
            "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*.ckpt")),
        }
    end = callbacks[-1].report.end if job.run else None
    tell(job, lines=lines, starts=starts, checkpoints=checkpoints, end=end)


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


def refusals(job: Job) -> None:
    """What is refused, and in which words."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    Digits.job, settings = job, QUIET | {"logger": False, "default_root_dir": job.files}

    def said(name: str, others: int = 0, data: Any = None, **arguments: Any) -> str:
        callbacks = [TranLogsLightningCallback(f"{job.run}/{name}{number}") for number in range(1 + others)]
        trainer = pl.Trainer(callbacks=callbacks, max_steps=2, enable_checkpointing=False, **settings)
        try:
            return said_of(lambda: trainer.fit(Digits("automatic", "step", False), data or loaders()[0], **arguments))
        finally:
            callbacks[0]._close()

    plain = pl.Trainer(max_steps=1, **settings)
    plain.fit(Digits("automatic", "step", False), loaders()[0])
    plain.save_checkpoint("own.ckpt")
    two_loaders = said("two loaders", data=[loaders()[0], loaders()[0]])
    checkpoint = said("checkpoint", ckpt_path="own.ckpt", weights_only=False)
    tell(job, **{"two": said("two", others=1), "two loaders": two_loaders, "checkpoint": checkpoint})
