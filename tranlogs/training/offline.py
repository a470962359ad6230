"""Replay of a run without its training script, and the snapshot that a checkpoint is derived from."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ..base.errors import UsageError
from ..checkpoints import Snapshot
from ..encoding.tree import Adapt
from ..log.record_body import encode_parts
from ..log.record_format import Position
from ..recovery import RecoveryReport
from ..recovery.exactness import make_report
from ..recovery.recover import Progress, Recovered


class OfflineState(Protocol):
    """A state that was rebuilt from a checkpoint and a log."""

    @property
    def notes(self) -> list[str]:
        """Notes of the recovery, one sentence each."""
        ...

    def compare_environment(self) -> list[str]:
        """Return the differences between the recorded environment and this process's, one sentence each."""
        ...

    def boundary_body(self, found: Recovered) -> dict[str, Any]:
        """Return the body of the boundary at which recovery ended, as the training script encodes it."""
        ...

    def find_script_changes(self, body: dict[str, Any]) -> list[str]:
        """Return what the script may have changed since the checkpoint and the log does not hold, one sentence each."""
        ...

    def derive(self, recovered: Recovered) -> Snapshot:
        """Return the encoded snapshot that the training script would have taken at that boundary."""
        ...


State = TypeVar("State", bound=OfflineState)


class OfflineReplay(ABC, Generic[State]):
    """The state of one journal, replayed without its training script. Base class of the integrations' `OfflineRun`.

    Args:
        folder: folder of the journal (`run/rank0`).
        state: state to be restored.
        adapt: encodes the framework's own objects.

    Attributes:
        report: report of the replay; None before `replay`.
    """

    def __init__(self, folder: Path, state: State, adapt: Adapt) -> None:
        self.folder, self.state, self._adapt = folder, state, adapt
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
        """Bring the state to a step.

        Args:
            step: the step to end at; None for the newest.
            sequence: number of the last entry to redo; None for all.
            checkpoint: name of the checkpoint to start from; None for the one that gives the shortest replay.
            progress: called with what is done.

        Raises:
            RecoveryError: there is no sound checkpoint, or `step` is not covered.
            UsageError: the run holds nothing yet, or the class of an optimizer is unknown.
        """
        start = time.monotonic()
        found = self._recover(step, sequence, checkpoint, progress)
        if found is None:
            raise UsageError(f"{self.folder}: the run holds nothing yet")
        self._found, self.report = found, self._make_report(found, start)
        return self.report

    def snapshot(self, position: Position) -> Snapshot:
        """Return the replayed state as the run's own checkpoint at `position` would contain it, byte for byte.

        Raises:
            UsageError: it is not certain that the bytes are the same; the message says why.
            RecoveryError: the replay ended at another position.
        """
        if self._found is None:
            raise UsageError("replay() comes before snapshot()")
        self._found.require_position(position)
        return derive_snapshot(self.state, self._found, self._adapt)

    def export(self, path: Path, form: str | None = None, progress: Progress | None = None) -> list[str]:
        """Write the replayed state to a file or folder. Return what the format leaves out, one sentence each.

        Args:
            path: what to write.
            form: name of the format; None for the format of the file's name.
            progress: called with what is done.

        Raises:
            UsageError: the name, the folder or the state does not allow it.
            DataError: what was written does not read back as it was.
        """
        if self.report is None:
            raise UsageError("replay() comes before export()")
        return self._write(path, form, progress)

    def _make_report(self, found: Recovered, start: float) -> RecoveryReport:
        differences = self.state.compare_environment()
        exact, reasons = self._judge(found, differences)
        batch, epoch = self._data_position()
        return make_report(
            found,
            exact=exact,
            notes=[*found.notes, *self.state.notes, *differences, *reasons],
            batch=batch,
            epoch=epoch,
            seconds=time.monotonic() - start,
        )

    @abstractmethod
    def _recover(
        self, step: int | None, sequence: int | None, checkpoint: str | None, progress: Progress | None
    ) -> Recovered | None:
        """Recover the state; return None if the run holds nothing yet."""

    @abstractmethod
    def _judge(self, found: Recovered, differences: list[str]) -> tuple[bool | None, list[str]]:
        """Return whether the replay is exact, and the reasons for doubt.

        Args:
            found: the recovery.
            differences: between the recorded environment and this process's.
        """

    @abstractmethod
    def _data_position(self) -> tuple[int, int]:
        """Return the number of batches that the run had consumed, and the epoch."""

    @abstractmethod
    def _write(self, path: Path, form: str | None, progress: Progress | None) -> list[str]:
        """Write the state; see `export`."""


def derive_snapshot(state: OfflineState, found: Recovered, adapt: Adapt) -> Snapshot:
    """Return the snapshot of a replayed state, equal byte for byte to the one that the training script would have taken.

    Tensors come from the replay, auxiliary state from the boundary's record, and what only the script knows from the checkpoint
    that the replay started from.

    Raises:
        UsageError: it is not certain that the bytes are the same; the message says why.
    """
    for doubt in _find_doubts(state, found, adapt):
        raise UsageError(doubt)
    return state.derive(found)


def _find_doubts(state: OfflineState, found: Recovered, adapt: Adapt) -> list[str]:
    """Return why it is not certain that the snapshot is the same, one sentence each."""
    body = state.boundary_body(found)
    if not found.body or not body:
        return ["nothing was redone"]
    doubts = [*state.compare_environment(), *state.find_script_changes(body)]
    if encode_parts(body, adapt) != found.parts:
        doubts.append("what the boundary committed is not the same when it is written again")
    return doubts
