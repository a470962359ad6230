"""Verification of the checkpoints of a journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..base.errors import CorruptCheckpoint
from ..catalog import CheckpointRow
from ..checkpoints import Checkpoint
from ..checkpoints.folder import MANIFEST
from ..recovery.journal_facts import CatalogContents
from .findings import Checked, Finding, Problem
from .listing import is_retired


def verify_checkpoints(folder: Path, known: CatalogContents) -> Iterator[Finding]:
    """Check all bytes of all checkpoints, listed or not, except retired ones."""
    rows = {row.name: row for row in known.checkpoints}
    names = set(rows) | {path.name for path in (folder / "checkpoints").glob("step-*")}
    for name in sorted(names):
        row = rows.get(name)
        if row is not None and row.state == "retired":
            continue
        for finding in _verify_checkpoint(folder / "checkpoints" / name, row):
            if isinstance(finding, Problem) and row is not None and is_retired(folder, row):
                break
            yield finding


def _verify_checkpoint(path: Path, row: CheckpointRow | None) -> Iterator[Finding]:
    try:
        with Checkpoint(path) as checkpoint:
            identity = (checkpoint.step, checkpoint.sequence, checkpoint.chain, checkpoint.timeline)
            if row is not None and identity != (row.step, row.sequence, int(row.chain, 16), row.timeline):
                yield Problem(path / MANIFEST, "it describes another checkpoint than the one that the catalog lists", row.step)
            for nbytes, damage in checkpoint.verify():
                yield Checked(path, nbytes, tensors=1)
                if damage is not None:
                    yield _make_checkpoint_problem(damage, checkpoint.step)
    except CorruptCheckpoint as damage:
        yield _make_checkpoint_problem(damage, None if row is None else row.step)


def _make_checkpoint_problem(damage: CorruptCheckpoint, step: int | None) -> Problem:
    return Problem(Path(str(damage.path)), damage.why, step, damage.tensor)
