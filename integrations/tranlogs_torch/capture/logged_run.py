"""What the hooks of an optimizer need of the run that they log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from tranlogs.records import Payload, Tensor
from tranlogs.training import Journal, Rung

from ..ddp.gradient_ranges import Portion
from ..state.auxiliary.auxiliary import Auxiliary
from ..state.fingerprint import Digests
from ..state.state import TorchState
from .staging import Staging


class HookedOptimizer(Protocol):
    """An optimizer of the run.

    Attributes:
        name: in the run.
        inner: the optimizer.
    """

    name: str
    inner: torch.optim.Optimizer


class GradientDivider(Protocol):
    """Decides which part of the gradients this rank logs.

    Attributes:
        is_single: True if this process trains alone, and logs all gradients.
        rank: of this process.
        world: number of processes.
        copies: on how many ranks each gradient is logged.
    """

    @property
    def is_single(self) -> bool: ...

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def copies(self) -> int: ...

    def share(self, hooks: HookedOptimizer, named: Sequence[tuple[str, torch.Tensor]]) -> list[Portion] | None:
        """Return the portions of a step's gradients that this rank logs; None for all of them."""
        ...


class LoggedRun(Protocol):
    """A run to which steps are logged.

    Attributes:
        run: folder of the run.
        journal: takes the records.
        state: the parameters and optimizers.
        auxiliary: what boundaries commit besides.
        staging: brings gradients of a GPU to the host; None where all tensors are on the CPU.
        rung: tells whether steps are logged with their tensors.
        running: loops of `LoggedOptimizer` that are running.
        counting: names of optimizers of which a step was only counted since the newest record.
    """

    run: Path
    journal: Journal
    auxiliary: Auxiliary
    staging: Staging | None
    rung: Rung
    running: list[object]
    counting: set[str]

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """The modules that are trained, by prefix."""
        ...

    @property
    def state(self) -> TorchState:
        """The parameters and optimizers."""
        ...

    @property
    def coordinator(self) -> GradientDivider:
        """The coordinator of the processes that train together."""
        ...

    @property
    def is_active(self) -> bool:
        """True if steps of this process are logged."""
        ...

    def before_step(self) -> None:
        """Log what something wrote to the state since the last look."""
        ...

    def after_step(self, optimizer: str) -> None:
        """Count a step of an optimizer that was logged."""
        ...

    def digests(self) -> Digests:
        """Return the fingerprint of the parameters after the step that is being logged."""
        ...

    def has_changed(self) -> bool:
        """Return True if something wrote to the state since the last look."""
        ...

    def saw_scaler(self, scaler: object) -> None:
        """Note that a GradScaler calls the optimizer's step."""
        ...

    def after_image(self, tensors: list[Tensor], *, every_step: bool) -> Payload | None:
        """Return the payload of an after-image; None if it cannot be brought from a device."""
        ...
