"""Settings and verdict of a rehearsal."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ..base.errors import UsageError
from .compare_runs import Difference


@dataclass(frozen=True, slots=True)
class RehearsalSettings:
    """Settings of a rehearsal.

    Attributes:
        command: the command line of the script.
        folder: the working folder of the script.
        units: number of units to train.
        kills: number of kills while it trains.
        seconds: time after which the rehearsal ends without a verdict.
        disk_bytes: bytes that its folder may take.
        seed: seed of the moments of the kills.
        scratch: folder in which the rehearsal's folder is made; None for the one for temporary files.
        keeps: True to keep that folder.
    """

    command: list[str]
    folder: Path
    units: int
    kills: int
    seconds: float
    disk_bytes: int
    seed: int
    scratch: Path | None = None
    keeps: bool = False

    def check(self) -> None:
        """Check that the command exists, and that the numbers make sense.

        Raises:
            UsageError: one of them does not.
        """
        if not self.command:
            raise UsageError("give the command line of the script: tranlogs rehearse -- python train.py")
        if self.units < 2:
            raise UsageError(f"--units must be at least 2, got {self.units}: a kill comes before the last unit")
        if self.kills < 1:
            raise UsageError(f"--kills must be at least 1, got {self.kills}")
        if self.scratch is not None and not self.scratch.is_dir():
            raise UsageError(f"--scratch {self.scratch}: no such folder")
        name = self.command[0]
        if not ((self.folder / name).is_file() if os.sep in name else shutil.which(name)):
            raise UsageError(f"{name}: no such command; write it as in a shell: tranlogs rehearse -- python train.py")
        script = self.folder / self.command[1] if len(self.command) > 1 else None
        if script is not None and script.suffix == ".py" and not script.is_file():
            raise UsageError(f"{script}: no such file")


class NotJudged(Exception):
    """The script cannot be judged; the message is the reason.

    Attributes:
        notes: further facts, such as the last lines of its errors.
    """

    def __init__(self, why: str, *notes: str) -> None:
        super().__init__(why)
        self.notes = list(notes)


class Outcome(Enum):
    """Outcome of a rehearsal; the value is the exit code."""

    EXACT = 0
    NOT_EXACT = 1
    NOT_JUDGED = 2


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill of the script.

    Attributes:
        step: the newest step that was committed when the script died.
        seconds: seconds that it had lived.
        during: "training" or "start".
    """

    step: int
    seconds: float
    during: str


@dataclass(slots=True)
class Verdict:
    """Findings of a rehearsal.

    Attributes:
        outcome: whether the script resumes exactly.
        headline: the verdict in one sentence.
        command: the command line of the script.
        seed: seed of the moments of the kills.
        is_wrapped: whether the script trains with TranLogs; None if it is not known.
        units: number of units that were compared.
        step: the step at which the runs were compared.
        ranks: number of processes that trained.
        kills: the kills.
        compared: what was compared and is equal.
        differences: what differs, what shows first at the beginning.
        notes: what else to know: notes of the recovery's report, and what could not be compared.
        starts_over: variables and objects of the script that start over at each start, which what was compared does not show.
        advice: lines to add to the script.
        seconds: how long the rehearsal took.
        disk_bytes: what its folder took at the end.
        folder: the rehearsal's folder, if it was kept.
    """

    outcome: Outcome
    headline: str
    command: list[str] = field(default_factory=list)
    seed: int = 0
    is_wrapped: bool | None = None
    units: int = 0
    step: int = 0
    ranks: int = 0
    kills: list[Kill] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    starts_over: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    seconds: float = 0.0
    disk_bytes: int = 0
    folder: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as plain values, for JSON."""
        return {**asdict(self), "outcome": self.outcome.name.lower().replace("_", " ")}
