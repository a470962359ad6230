"""Every name of transformers' inside that TranLogs needs, and nothing else: what a new version can break is here.

Trainer has no public way to begin in the middle: where it stands is read from a checkpoint folder before model and optimizer
are prepared. What is used instead was read in the sources of transformers 5.8 to 5.23, and is checked at import.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from types import FrameType
from typing import Any

import transformers
from transformers import Trainer
from transformers.trainer_callback import ExportableState

from tranlogs.base.errors import UsageError

__all__ = ["PATCHED", "PROGRESS", "ExportableState", "check_transformers", "count_rates", "find_trainer", "trainer_names"]

# Methods of the trainer that are called through ours, with the parameters that ours rely on.
PATCHED = {
    "get_train_dataloader": (),
    "get_batch_samples": ("epoch_iterator", "num_batches", "device"),
    "_init_training_state": ("max_steps", "num_update_steps_per_epoch", "num_train_epochs", "resume_from_checkpoint", "trial"),
    "_prepare_for_training": ("max_steps", "train_dataloader", "resume_from_checkpoint"),
    "log": ("logs",),
    "_run_epoch": ("epoch", "steps_in_epoch", "resume_from_checkpoint", "epochs_trained", "steps_trained_in_current_epoch"),
}
# What the trainer keeps beside its TrainerState, for the loss that it logs.
PROGRESS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")


def check_transformers() -> None:
    """Check that TranLogs supports this version of transformers.

    Raises:
        UsageError: it does not; the message names what is missing.
    """
    missing = [
        f"Trainer.{name}({', '.join(parameters)})"
        for name, parameters in PATCHED.items()
        if not _takes(getattr(Trainer, name, None), parameters)
    ]
    source = inspect.getsource(sys.modules[Trainer.__module__])
    missing += [f"Trainer.{name}" for name in PROGRESS if f"self.{name} " not in source]
    if missing:
        raise UsageError(
            f"transformers {transformers.__version__} lacks what TranLogs needs to resume inside Trainer.train: "
            f"{', '.join(missing)}. Supported are 5.8 to 5.23: pip install 'transformers>=5.8,<5.24'"
        )


def count_rates(logs: dict[str, float], here: int, trained: int) -> None:
    """Make the rates of a training those of the steps that this process took: Trainer divides all steps by its runtime.

    Args:
        logs: what the trainer logs; set in place.
        here: steps that this process took.
        trained: steps that the trainer counts.
    """
    for name in ("train_samples_per_second", "train_steps_per_second"):
        if name in logs and trained:
            logs[name] = round(logs[name] * here / trained, 3)


def _takes(method: Any, parameters: tuple[str, ...]) -> bool:
    return callable(method) and set(parameters) <= set(inspect.signature(method).parameters)


@functools.cache
def trainer_names() -> frozenset[str]:
    """Return the names of all attributes that Trainer itself reads or sets; others are of a subclass."""
    return frozenset(re.findall(r"\bself\.(\w+)", inspect.getsource(sys.modules[Trainer.__module__])))


def find_trainer() -> Trainer | None:
    """Return the trainer that is being created. Callbacks are called then, and are given everything but the trainer."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if frame.f_code.co_name == "__init__" and isinstance(found, Trainer):
            return found
        frame = frame.f_back
    return None
