"""Findings of a verification: parts of files that were checked, and damage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Problem:
    """Damage to a file.

    Attributes:
        path: the file.
        what: what differs from what was written.
        step: the step that is affected; None if it is unknown.
        tensor: the tensor that is affected; None if it is unknown, or if no single one is.
    """

    path: Path
    what: str
    step: int | None = None
    tensor: str | None = None

    def __str__(self) -> str:
        where = (f"step {self.step}: " if self.step is not None else "") + (f"tensor {self.tensor}: " if self.tensor else "")
        return f"{self.path}: {where}{self.what}"


@dataclass(frozen=True, slots=True)
class Checked:
    """A part of a file that was checked, whether it is sound or not.

    Attributes:
        path: the file.
        nbytes: the bytes that were checked.
        entries: the number of entries in them.
        tensors: the number of tensors in them.
    """

    path: Path
    nbytes: int
    entries: int = 0
    tensors: int = 0


Finding = Problem | Checked
