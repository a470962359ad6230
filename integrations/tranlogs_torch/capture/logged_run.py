"""A run as the hooks of its optimizers and modules use it: its parts, and the phase that it is in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from tranlogs.training import Journal, Place, Rung

from ..ddp.gradient_ranges import Portion
from ..state.auxiliary import Auxiliary
from ..state.state import TorchState
from .foreign_writes import ForeignWrites
from .staging import Staging


class Phase:
    """A phase of a run: what its hooks and loops do there. A run is in one phase, and the next one replaces it.

    This one logs nothing.

    Attributes:
        has_begun: True once steps are logged in this process.
        is_logging: True while they are.
    """

    has_begun, is_logging = True, False

    def before_step(self) -> None:
        """Log what something else than a step has written, before an optimizer's gradients are captured."""

    def after_step(self, optimizer: str) -> None:
        """Count a step of an optimizer."""

    def before_forward(self) -> None:
        """Note that a forward pass begins with which a unit outside of all loops ends."""

    def note_writes(self, place: Place | None = None) -> None:
        """Log writes that no step made, as a part of the running unit."""

    def open_loop(self) -> None:
        """Note that the script enters a loop of `LoggedOptimizer`."""

    def boundary(self, asking: object = None) -> None:
        """Commit the unit, because the loop `asking` (None: whichever runs) wants its next batch."""

    def note_commit(self) -> None:
        """Note that a unit was committed, after which another phase may follow."""


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

    def share(
        self, name: str, optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, torch.Tensor]]
    ) -> list[Portion] | None:
        """Return the portions of a step's gradients that this rank logs; None for all of them."""
        ...


class LoggedRun:
    """A run to which steps are logged.

    Attributes:
        run: folder of the run.
        journal: takes the records.
        state: the parameters and optimizers.
        auxiliary: what boundaries commit besides.
        coordinator: connects the processes that train together.
        staging: brings gradients of a GPU to the host; None where all tensors are on the CPU.
        writes: finds and logs writes that no step made.
        rung: tells whether steps are logged with their tensors.
        phase: of the run.
        has_reported_unlogged: True once a step on the closed run was reported.
    """

    phase: Phase

    def __init__(
        self,
        run: Path,
        journal: Journal,
        state: TorchState,
        auxiliary: Auxiliary,
        coordinator: GradientDivider,
        staging: Staging | None,
        rung: Rung,
    ) -> None:
        self.run, self.journal, self.state, self.auxiliary = run, journal, state, auxiliary
        self.coordinator, self.staging, self.rung = coordinator, staging, rung
        self.has_reported_unlogged = False
        self.writes = ForeignWrites(run, journal, state, staging)
