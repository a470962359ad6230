"""Replay of a run without its training script."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ..base.errors import UsageError
from ..base.notes import Note, coded
from ..recovery.recover import Progress, Recovered
from ..recovery.report import RecoveryReport, make_report


class OfflineState(Protocol):
    """A state that was rebuilt from a checkpoint and a log."""

    @property
    def notes(self) -> list[Note]:
        """Notes of the recovery."""
        ...

    def compare_environment(self) -> list[Note]:
        """Return the differences between the recorded environment and this process's."""
        ...


State = TypeVar("State", bound=OfflineState)


class OfflineReplay(ABC, Generic[State]):
    """The state of one journal, replayed without its training script. Base class of the integrations' `OfflineRun`.

    Args:
        folder: folder of the journal (`run/rank0`).
        state: state to be restored.

    Attributes:
        report: report of the replay; None before `replay`.
    """

    def __init__(self, folder: Path, state: State) -> None:
        self.folder, self.state = folder, state
        self.report: RecoveryReport | None = None

    def replay(
        self,
        *,
        step: int | None = None,
        checkpoint: str | None = None,
        progress: Progress | None = None,
    ) -> RecoveryReport:
        """Bring the state to a step.

        Args:
            step: the step to end at; None for the newest.
            checkpoint: name of the checkpoint to start from; None for the one that gives the shortest replay.
            progress: called with what is done.

        Raises:
            RecoveryError: there is no sound checkpoint, or `step` is not covered.
            UsageError: the run holds nothing yet, or the class of an optimizer is unknown.
        """
        start = time.monotonic()
        found = self._recover(step, checkpoint, progress)
        if found is None:
            raise UsageError(f"{self.folder}: the run holds nothing yet")
        self.report = self._make_report(found, start)
        return self.report

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
        return make_report(
            found,
            exact=exact,
            notes=[*coded("damaged", found.notes), *self.state.notes, *differences, *reasons],
            place=self._find_place(),
            seconds=time.monotonic() - start,
        )

    @abstractmethod
    def _recover(self, step: int | None, checkpoint: str | None, progress: Progress | None) -> Recovered | None:
        """Recover the state; return None if the run holds nothing yet."""

    @abstractmethod
    def _judge(self, found: Recovered, differences: list[Note]) -> tuple[bool | None, list[Note]]:
        """Return whether the replay is exact, and the reasons for doubt.

        Args:
            found: the recovery.
            differences: between the recorded environment and this process's.
        """

    @abstractmethod
    def _find_place(self) -> tuple[int, int, int]:
        """Return the number of the loop, its epoch, and the number of its batches that are done."""

    @abstractmethod
    def _write(self, path: Path, form: str | None, progress: Progress | None) -> list[str]:
        """Write the state; see `export`."""
