"""TranLogs for loops that accelerate has prepared.

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    log = log_prepared(accelerator, "runs/gpt", model, optimizer, loader)
    log.track(scheduler=scheduler).recover()
    for epoch in log.epochs(10):
        for batch in epoch:
            with accelerator.accumulate(model):
                ...

It comes behind `prepare`, since only then the wrapped model is there, by which the processes divide the log, and the loader
that gives each of them its batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from ..optimizer import LoggedOptimizer
from .accelerate_objects import check_accelerate, plain_loader, plain_optimizer
from .trainer_position import TrainerPosition

__all__ = ["log_prepared"]

check_accelerate()


def log_prepared(
    accelerator: Accelerator, run: str | Path, model: Any, optimizer: Any, loader: Any, **settings: Any
) -> LoggedOptimizer:
    """Log a training of which accelerate has prepared the parts; give all as `prepare` gave them.

    What comes back is a `LoggedOptimizer`: track the (prepared) scheduler, `recover()`, and take the batches from its `epochs`
    or `batches`, as they come from the prepared loader. Gradients are accumulated by `accelerator.accumulate` as ever. Step the
    prepared optimizer.

    Args:
        accelerator: its count of accumulated batches, its GradScaler, and what was given to `register_for_checkpointing` come
            back, too.
        run: folder of the run.
        model: the prepared model.
        optimizer: the prepared optimizer.
        loader: the prepared training loader.
        settings: all that `LoggedOptimizer` takes besides.

    Raises:
        UsageError: a part is not as accelerate prepares it, or cannot be resumed.
    """
    inside = plain_loader(loader)
    logged = LoggedOptimizer(plain_optimizer(optimizer), run, model, **settings)
    logged.training_run.report.face = "accelerate"
    try:
        position = logged.training_run.auxiliary.loader(inside, kind=PreparedPosition)
        assert isinstance(position, PreparedPosition)
        position.prepared = loader
        logged.track(accelerator=_Accumulation(accelerator))
        if accelerator.scaler is not None:
            logged.track(scaler=accelerator.scaler)
        for number, registered in enumerate(accelerator._custom_objects, start=1):
            logged.track(**{f"registered{number}": registered})
    except BaseException:
        logged.close()
        raise
    return logged


class _Accumulation:
    """Batches since gradients were last used, as the accelerator counts them."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._accelerator.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._accelerator.step = state["step"]


class PreparedPosition(TrainerPosition):
    """The position in a loader inside of accelerate's; the loops are ours, and go through accelerate's.

    Attributes:
        prepared: accelerate's loader.
    """

    prepared: Any = None

    def stands_for(self, loader: Any) -> bool:
        """Return True if the loader is this one, as the script knows it."""
        return loader is self.prepared or super().stands_for(loader)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume there when the loop begins."""
        super().load_state_dict(state)
        self.prepared.set_epoch(self.epoch)

    def rest_of_epoch(self, until: int | None = None) -> Iterator[Any]:
        """Yield the batches that are left of the running epoch, until the whole run has trained on so many."""
        self.enter()
        done = self.batch if self.is_pending else 0
        for data in self.prepared:
            yield data
            done += 1
            self.advance(done)
            self._on_boundary(self)
            if until is not None and self.passed >= until:
                return
        self.end_epoch()

    def batches(self, until: int | None) -> Iterator[Any]:
        """Yield batches over all epochs until so many were trained on."""
        while until is None or self.passed < until:
            before = self.passed
            yield from self.rest_of_epoch(until)
            if self.passed == before:
                return  # an empty loader would be asked for ever
