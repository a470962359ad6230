"""The toy model as a framework that a monitor's child process finds: `toy` of the entry points `tranlogs.frameworks`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.toy import ToyState
from tranlogs.base.errors import UsageError
from tranlogs.checkpoints import Checkpoint, Snapshot
from tranlogs.log.record_format import Position
from tranlogs.recovery import RecoveryReport, recover
from tranlogs.recovery.recover import Progress, Recovered


class Recorded(ToyState):
    """Of the sizes that the checkpoint has."""

    def restore(self, checkpoint: Checkpoint) -> None:
        self.parameters = {name[6:]: np.zeros(checkpoint.layout(name)[1]) for name in checkpoint.names("param/")}
        self.momenta = {name: np.zeros_like(p) for name, p in self.parameters.items()}
        super().restore(checkpoint)

    def differences(self, checkpoint: Checkpoint) -> list[str]:
        return []


class OfflineRun:
    """See `tranlogs.frameworks.OfflineRun`; with an optimizer of the name "doubtful" it is not sure of anything."""

    def __init__(self, folder: Path, *, optimizers: Sequence[str] = ()) -> None:
        self.folder, self.state, self.optimizers = folder, Recorded(), optimizers
        self._found: Recovered | None = None

    @staticmethod
    def check_target(path: Path) -> None:
        raise UsageError(f"{path}: a toy is not exported")

    def export(self, path: Path) -> list[str]:
        raise UsageError(f"{path}: a toy is not exported")

    def replay(
        self,
        *,
        step: int | None = None,
        sequence: int | None = None,
        checkpoint: str | None = None,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        found = self._found = recover(self.folder, self.state, step=step, sequence=sequence, checkpoint=checkpoint)
        assert found is not None
        is_sure = found.divergence is None and "doubtful" not in self.optimizers
        return RecoveryReport(
            found.position.step,
            checkpoint_step=found.plan.checkpoint.step,
            replayed=found.replayed,
            exact=True if is_sure else None,
            notes=("a doubt",) if not is_sure else (),
        )

    def snapshot(self, position: Position) -> Snapshot:
        assert self._found is not None
        self._found.require_position(position)
        made = self.state.snapshot()
        made.encode(None)
        return made
