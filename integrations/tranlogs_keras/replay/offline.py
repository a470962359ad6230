"""A Keras run's state, rebuilt from its checkpoint and log alone, without the script that trained it.

Variables are made as the checkpoint lists them, the optimizer from its recorded configuration: Keras's own classes only,
others where the user names them. Steps are redone by the function that a live run uses. Keras is imported here once the run
has said on which backend it was trained.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tranlogs.base.errors import DataError, UsageError
from tranlogs.records import Checkpoint, Position, Snapshot
from tranlogs.training import Progress, Recovered, RecoveryReport, judge_exactness, make_report, read_facts, recover

from ..backends import choose_backend
from ..export_targets import check_target

if TYPE_CHECKING:
    from .recorded_state import RecordedState


class OfflineRun:
    """One journal of a Keras run; the `keras` of the entry points `tranlogs.frameworks`.

    Args:
        folder: the journal's (`run/rank0`).
        optimizers: classes that keras.optimizers does not have, as "module:Class".

    Raises:
        UsageError: the run holds nothing yet, or was trained on another backend than the one that Keras runs on here.
    """

    check_target = staticmethod(check_target)

    def __init__(self, folder: Path, *, optimizers: Sequence[str] = ()) -> None:
        self.folder = folder
        choose_backend(_backend_of(folder))
        from .recorded_state import RecordedState

        self.state: RecordedState = RecordedState(optimizers)
        self.report: RecoveryReport | None = None
        self._found: Recovered | None = None

    def replay(
        self,
        *,
        step: int | None = None,
        sequence: int | None = None,
        checkpoint: str | None = None,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        """Bring the state to a step (default: the newest).

        Args:
            step: where to land.
            sequence: number of the last entry to be redone.
            checkpoint: name of the checkpoint to start from.
            progress: told what is done.

        Raises:
            RecoveryError: no sound checkpoint is left, or `step` is not covered.
            UsageError: the optimizer's class is not known.
        """
        from ..state import environment

        start = time.monotonic()
        found = recover(self.folder, self.state, step=step, sequence=sequence, checkpoint=checkpoint, progress=progress)
        self._found = found
        assert found is not None, "a run with a checkpoint holds something"
        exact, told = judge_exactness(found, self.state.fingerprint_kinds, compared="variables")
        compared = environment.compare(self.state.recorded_environment, self.state.environment_now())
        position = self.state.body["position"]
        self.report = make_report(
            found,
            exact=None if exact and compared else exact,
            notes=[*found.notes, *self.state.notes, *compared, *told],
            batch=position["total"],
            epoch=position["epoch"],
            seconds=time.monotonic() - start,
        )
        return self.report

    def snapshot(self, position: Position) -> Snapshot:
        """The replayed state as the run itself would put it into a checkpoint at `position`: the same bytes.

        Raises:
            UsageError: that cannot be known, and why.
        """
        from .derived_checkpoint import snapshot

        if self._found is None:
            raise UsageError("replay() comes before snapshot()")
        self._found.require_position(position)
        return snapshot(self.state, self._found)

    def export(self, path: Path, form: str | None = None, progress: Progress | None = None) -> list[str]:
        """Write the replayed state to a file; returns what it does not hold, one sentence each.

        Args:
            path: what to write; its name says the format.
            form: None: Keras's formats are not named.
            progress: told what is done.

        Raises:
            UsageError: the file's name or folder, or what the run recorded of its model, does not allow it.
        """
        from .export import write

        if self.report is None:
            raise UsageError("replay() comes before export()")
        check_target(path, form)
        notes = write(path, self.state)
        if progress is not None:
            progress("written", 1, 1)
        return notes


def _backend_of(folder: Path) -> str:
    for row in sorted(read_facts(folder).checkpoints, key=lambda row: row.sequence, reverse=True):
        try:
            with Checkpoint(folder / "checkpoints" / row.name) as checkpoint:
                return str(checkpoint.manifest["environment"]["backend"])
        except (DataError, KeyError):
            continue
    raise UsageError(f"{folder}: the run holds no checkpoint that can be read")
