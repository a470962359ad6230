"""The place at which a run stands, looked for before anything of the model is touched."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tranlogs.base.errors import DataError
from tranlogs.records import Checkpoint
from tranlogs.training import Recovered, RunResources, describe_replacement, recover

from ..backends import arrays
from ..replay.redo import UntouchedState

_log = logging.getLogger("tranlogs")


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """The newest checkpoint that can be read.

    Attributes:
        path: its folder.
        meta: what it holds besides tensors.
        boundary: the body of the boundary at which it was taken; of the newest one, if `end` is known.
        end: where the log ends, if that is known.
    """

    path: Path
    meta: dict[str, Any]
    boundary: dict[str, Any]
    end: Recovered | None = None

    def at_end(self, resources: RunResources) -> NewestCheckpoint:
        """Return the same with the end of the log behind it. Only what boundaries hold is read."""
        nothing = UntouchedState()
        end = recover(resources.journal.paths.folder, nothing, spare=resources.spare)
        return replace(self, boundary=nothing.body, end=end)


def find_newest_checkpoint(resources: RunResources) -> NewestCheckpoint | None:
    """Return the newest readable checkpoint; None if the run is new.

    A checkpoint that cannot be read is replaced by the copy in the store, if there is one.
    """
    journal = resources.journal
    for row in sorted(journal.catalog.checkpoints(), key=lambda row: row.sequence, reverse=True):
        path = journal.paths.checkpoints / row.name
        try:
            return _opened(path)
        except DataError as error:
            _log.debug("%s", error)
            if source := resources.spare.replace(row.name):
                journal.notes.append(describe_replacement(path, source))
                return _opened(path)
    return None


def _opened(path: Path) -> NewestCheckpoint:
    meta = read_meta(path)
    return NewestCheckpoint(path, meta, meta["boundary"])


def read_meta(path: Path) -> dict[str, Any]:
    """Return what the checkpoint in a folder holds besides tensors."""
    with Checkpoint(path) as checkpoint:
        found: dict[str, Any] = checkpoint.meta(make_array=arrays.from_array)
        return found
