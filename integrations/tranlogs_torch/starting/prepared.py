"""`RUN/start`: what `tranlogs import` has put there for a run that is yet to begin.

A checkpoint's folder (checkpoint/layout.py: safetensors, a tree of plain values, checksums of both; no pickle), so what is
loaded when the script begins is what was checked when it was imported.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tranlogs.checkpoint import Checkpoint, Snapshot, SnapshotPool, write_checkpoint
from tranlogs.durable import make_folder
from tranlogs.errors import CannotRead, CorruptCheckpoint, DataError, UsageError

from ..adapt import adapt, make_array, make_extension
from .settings import StartFrom
from .source import Parts

FOLDER = "start"


def prepare(run: Path, start: StartFrom, parts: Parts) -> int:
    """Put a source's parts into the folder of a run that has not begun; the bytes written.

    Raises:
        UsageError: the run has begun, or is prepared already.
        UnencodableState: the source holds what cannot be stored safely.
    """
    if any(run.glob("rank*/checkpoints/*")):  # the first is written before the first step
        raise UsageError(f"{run}: the run has begun already. Give a new folder")
    if (run / FOLDER).exists():
        raise UsageError(f"{run / FOLDER} is there already, from another import. Delete it, or give a new folder")
    options = {**asdict(start), "path": str(start.path), "missing": list(start.missing), "unexpected": list(start.unexpected)}
    meta = {"options": options, "weights": parts.weights, "optimizers": _plain(parts.optimizers),
            "others": _plain(parts.others), "left": list(parts.left)}  # fmt: skip
    snapshot = Snapshot({}, meta)
    snapshot.encode(adapt)
    SnapshotPool().hold(snapshot)
    make_folder(run)
    about = {"step": 0, "sequence": 0, "chain": "0", "timeline": 1, "run": "", "environment": {}, "created_at": time.time()}
    return write_checkpoint(run, FOLDER, snapshot, about)


def _plain(value: Any) -> Any:
    """Dicts as dicts: torch's own loading makes no other."""
    return {key: _plain(item) for key, item in value.items()} if type(value) is dict else value


def is_prepared(run: Path) -> bool:
    """Whether a source waits there."""
    return (run / FOLDER).is_dir()


def read_prepared(run: Path) -> tuple[StartFrom, Parts]:
    """What waits there.

    Raises:
        UsageError: it is damaged.
    """
    try:
        with Checkpoint(run / FOLDER) as checkpoint:
            meta = checkpoint.meta(make_array=make_array, make_extension=make_extension)
    except CorruptCheckpoint as error:
        raise UsageError(f"{error.path}: {error.why}. Import it again") from None
    parts = Parts(meta["weights"], meta["optimizers"], meta["others"], tuple(meta["left"]))
    return StartFrom(**meta["options"]), parts


def identity(run: Path) -> str:
    """What tells it from another one; empty where it cannot be read, which matters to a run that is yet to begin alone."""
    with suppress(DataError, CannotRead), Checkpoint(run / FOLDER) as checkpoint:
        return repr(sorted((name, about["xxh3_64"]) for name, about in checkpoint.manifest["tensors"].items()))
    return ""
