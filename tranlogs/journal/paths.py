"""The folders of a journal."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import NotARun


@dataclass(frozen=True, slots=True)
class JournalPaths:
    """The folders of one journal.

    Attributes:
        folder: `RUN/rank<R>`.
    """

    folder: Path

    @classmethod
    def of(cls, run: str | os.PathLike[str], rank: int = 0) -> JournalPaths:
        """Return the folders of a rank's journal in a run."""
        return cls(Path(run) / f"rank{rank}")

    @property
    def log(self) -> Path:
        """The folder of the log's segments and its index."""
        return self.folder / "log"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    def require(self) -> JournalPaths:
        """Return these paths if a journal is there.

        Raises:
            NotARun: there is no journal.
        """
        if not self.log.is_dir() or not self.checkpoints.is_dir():
            raise NotARun(self.folder.parent)
        return self
