"""Derived checkpoints in the test's own process, beside the trainer's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tranlogs.base.clock import SystemClock
from tranlogs.catalog import Catalog
from tranlogs.checkpoints.derived import DerivedCheckpoint, derived_folder
from tranlogs.journal import JournalPaths
from tranlogs.journal.abandoned_segments import seal_abandoned_segments
from tranlogs.journal.opening import open_catalog
from tranlogs.log.record_format import Position
from tranlogs.recovery.derived_checkpoint import plan_derived_checkpoint, write_derived_checkpoint


def made(journal: Path, run: Callable[[Path], Any]) -> DerivedCheckpoint:
    """A shadow of the newest place, in this process, not published."""
    target = plan_derived_checkpoint(journal)
    assert target is not None
    offline = run(journal)
    assert offline.replay(sequence=target.position.sequence).exact is True
    return write_derived_checkpoint(journal, target, offline.snapshot(target.position), SystemClock())


def contents(folder: Path) -> dict[str, bytes]:
    """A checkpoint's files, without the moment of its making."""
    manifest = json.loads((folder / "manifest.json").read_bytes())["manifest"]
    del manifest["created_at"]
    found = {name: (folder / name).read_bytes() for name in ("state.safetensors", "meta.bin")}
    return {**found, "manifest.json": json.dumps(manifest).encode()}


def forget_checkpoints(journal: Path, *, but: int = 1) -> None:
    """Take all checkpoints but the first ones out of a run that nobody writes."""
    catalog = Catalog.open(journal, writable=True)
    rows = sorted(catalog.checkpoints(), key=lambda row: row.sequence)[but:]
    with catalog.transaction() as tables:
        for row in rows:
            tables.delete(f"checkpoint/{row.name}")
    catalog.close()
    for row in rows:
        shutil.rmtree(journal / "checkpoints" / row.name)


def checkpoints(journal: Path) -> list[int]:
    """Steps of the published ones."""
    catalog = Catalog.open(journal)
    try:
        return [row.step for row in catalog.checkpoints()]
    finally:
        catalog.close()


def beside_its_own(journal: Path, run: Callable[[Path], Any]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The newest checkpoint of a run that nobody writes, and the one made from the log and the first checkpoint."""
    catalog, _ = open_catalog(JournalPaths(journal), 0, "", [])  # a kill may have come before it knew the newest checkpoint
    seal_abandoned_segments(JournalPaths(journal), catalog, sync=False)
    own = max(catalog.checkpoints(), key=lambda row: row.sequence)
    catalog.close()
    right = contents(journal / "checkpoints" / own.name)
    forget_checkpoints(journal)
    target = plan_derived_checkpoint(journal)
    assert target is not None
    target = replace(target, position=Position(own.sequence, own.step, int(own.chain, 16), own.timeline))
    offline = run(journal)
    report = offline.replay(sequence=own.sequence)
    assert report.exact is True, report
    shadow = write_derived_checkpoint(journal, target, offline.snapshot(target.position), SystemClock())
    assert shadow.row.name == own.name
    return right, contents(derived_folder(journal / "checkpoints", own.name))
