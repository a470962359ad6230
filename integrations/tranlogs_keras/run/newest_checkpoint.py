"""The newest checkpoint of a run that can be read, looked for before anything of the model is touched."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tranlogs.base.errors import DataError
from tranlogs.records import Checkpoint
from tranlogs.training import RunResources, describe_replacement

from ..backends import arrays

_log = logging.getLogger("tranlogs")


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """A checkpoint's place and description.

    Attributes:
        path: its folder.
        meta: what it holds besides tensors.
    """

    path: Path
    meta: dict[str, Any]

    @property
    def boundary(self) -> dict[str, Any]:
        """The body of the boundary at which the checkpoint was taken."""
        body: dict[str, Any] = self.meta["boundary"]
        return body


def find_newest_checkpoint(resources: RunResources) -> NewestCheckpoint | None:
    """Return the newest readable checkpoint; None if the run is new.

    A checkpoint that cannot be read is replaced by the copy in the store, if there is one.
    """
    journal = resources.journal
    for row in sorted(journal.catalog.checkpoints(), key=lambda row: row.sequence, reverse=True):
        path = journal.paths.checkpoints / row.name
        try:
            return NewestCheckpoint(path, read_meta(path))
        except DataError as error:
            _log.debug("%s", error)
            if source := resources.spare.replace(row.name):
                journal.notes.append(describe_replacement(path, source))
                return NewestCheckpoint(path, read_meta(path))
    return None


def read_meta(path: Path) -> dict[str, Any]:
    """Return what the checkpoint in a folder holds besides tensors."""
    with Checkpoint(path) as checkpoint:
        found: dict[str, Any] = checkpoint.meta(make_array=arrays.from_array)
        return found
