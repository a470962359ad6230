"""Survey of a folder with imported weights, in which no training script has begun a run yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ...base.config import IMPORTED_NAME
from ...base.errors import CorruptCheckpoint
from ...checkpoints import Checkpoint


@dataclass(frozen=True, slots=True)
class ImportedWeights:
    """The weights with which a run will begin.

    Attributes:
        folder: the folder that holds them.
        nbytes: its size.
        created_at: when they were imported, in seconds since 1970.
        problems: what is wrong, one sentence each.
    """

    folder: Path
    nbytes: int = 0
    created_at: float = 0.0
    problems: list[str] = field(default_factory=list)


def survey_imported(run: Path) -> ImportedWeights:
    """Read the description of imported weights; the bytes of the tensors are not checked."""
    folder = run / IMPORTED_NAME
    try:
        with Checkpoint(folder) as checkpoint:
            nbytes = sum(path.stat().st_size for path in folder.iterdir())
            return ImportedWeights(folder, nbytes, checkpoint.manifest["created_at"])
    except CorruptCheckpoint as error:
        return ImportedWeights(folder, problems=[f"{error.path}: {error.why}. Delete {folder}, and import the weights again"])
