"""Objects that accelerate has prepared, and the objects inside. Hugging Face's Trainer uses accelerate, too."""

from __future__ import annotations

import inspect
from typing import Any

import accelerate
from accelerate.data_loader import DataLoaderAdapter, DataLoaderDispatcher, DataLoaderShard
from accelerate.optimizer import AcceleratedOptimizer
from torch.optim import Optimizer

from tranlogs.base.errors import UsageError


def check_accelerate() -> None:
    """Check that TranLogs supports this version of accelerate.

    Raises:
        UsageError: it does not; the message names what is missing.
    """
    expected = [
        (DataLoaderAdapter.__init__, "self.base_dataloader ="),
        (DataLoaderShard.__iter__, "self.base_dataloader.__iter__()"),
        (DataLoaderShard.set_epoch, "self.iteration = epoch"),
        (AcceleratedOptimizer.__init__, "self.optimizer = optimizer"),
        (accelerate.Accelerator._do_sync, "self.step += 1"),
        (accelerate.Accelerator.register_for_checkpointing, "self._custom_objects.extend(objects)"),
    ]
    missing = [f"{method.__qualname__} ({part})" for method, part in expected if part not in inspect.getsource(method)]
    if missing:
        raise UsageError(
            f"accelerate {accelerate.__version__} lacks what TranLogs needs: {', '.join(missing)}. Supported is 1.15: pip "
            "install 'accelerate>=1.15,<1.16'"
        )


def plain_optimizer(prepared: Any) -> Optimizer:
    """Return the optimizer inside accelerate's."""
    while isinstance(prepared, AcceleratedOptimizer):
        prepared = prepared.optimizer
    found: Optimizer = prepared
    return found


def plain_loader(prepared: Any) -> Any:
    """Return the DataLoader inside accelerate's.

    Raises:
        UsageError: its place cannot be known.
    """
    if isinstance(prepared, DataLoaderDispatcher):
        raise UsageError(
            "batches that one process reads for all (dispatch_batches, the default for an IterableDataset) cannot be "
            "resumed exactly. Set dispatch_batches=False (in accelerator_config of TrainingArguments, or in "
            "DataLoaderConfiguration)"
        )
    if not isinstance(prepared, DataLoaderShard):
        raise UsageError(
            f"the training loader is a {type(prepared).__name__}; only loaders that accelerate prepares (DataLoaderShard) "
            "can be resumed"
        )
    if prepared.use_stateful_dataloader:
        raise UsageError(
            "use_stateful_dataloader=True: that loader keeps its own position. Leave it out; TranLogs recovers the position"
        )
    return prepared.base_dataloader
