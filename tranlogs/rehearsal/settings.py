"""Settings of a rehearsal."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import UsageError


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
