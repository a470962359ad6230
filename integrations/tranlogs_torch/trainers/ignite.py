"""Ignite: an Engine that continues at the exact batch, with its own numbers of iterations and epochs."""

from __future__ import annotations

from typing import Any

from ignite.engine import Engine
from torch.utils.data import DataLoader

from tranlogs.base.errors import UsageError

from ..optimizer import LoggedOptimizer


def run_engine(engine: Engine, optimizer: LoggedOptimizer, loader: DataLoader[Any], *, max_epochs: int) -> Any:
    """Run an engine over a loader, as `engine.run(loader, max_epochs=...)` does, from where the run stands.

        optimizer.track(loader=loader).recover()
        run_engine(trainer, optimizer, loader, max_epochs=10)

    `Engine.run(loader)` counts iterations by itself and begins an exhausted loader again, so that after a crash it would train
    on too many batches. Handlers of STARTED, and those of EPOCH_STARTED of the epoch in which the run stands, run again after
    a crash. Metrics that are attached to the engine are kept if they are tracked before `recover()`; a metric that starts anew
    with each epoch is that of the rest of the resumed epoch.

    Args:
        engine: its function takes the steps of `optimizer`. Other engines, such as those of a validation, need nothing.
        optimizer: recovered.
        loader: with a length.
        max_epochs: epochs of the whole run.

    Returns:
        State of the engine, as `Engine.run`.

    Raises:
        UsageError: `recover()` was not called, or the engine has run before.
    """
    if not optimizer.training_run.is_logging:
        raise UsageError("run_engine: call optimizer.recover() first")
    if engine.state.iteration:
        raise UsageError(f"run_engine: the engine has already run {engine.state.iteration} iterations. Create a new one")
    length = len(loader)
    position = optimizer.training_run.auxiliary.loader(loader)
    taken, total = position.taken, max_epochs * length
    if taken:
        engine.load_state_dict({"iteration": taken, "epoch_length": length, "max_epochs": max(max_epochs, -(-taken // length))})
    if taken >= total:
        return engine.state
    batches = optimizer.batches(loader, until=total)
    state = engine.run(batches, max_epochs=max_epochs, epoch_length=length)
    if state.iteration == total:
        next(batches, None)  # the engine does not ask after its last batch, and only then is that complete
    return state
