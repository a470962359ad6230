"""`tranlogs import`: describe a source, and store it in RUN/start for a run that has not begun.

RUN/start is a checkpoint's folder (checkpoint/layout.py: safetensors, a tree of plain values, checksums of both; no pickle), so
the script loads exactly what was checked when it was imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tranlogs.base.atomic_files import make_folder
from tranlogs.base.config import IMPORTED_NAME
from tranlogs.base.errors import CannotRead, CorruptCheckpoint, DataError, UnencodableState, UsageError
from tranlogs.records import Checkpoint, Snapshot, SnapshotPool, tree, write_checkpoint
from tranlogs.training import Progress

from ..tensors.arrays import adapt, make_array, make_extension
from .foreign_source import ForeignParts, StartFrom, StateDict, read_parts

FOLDER = IMPORTED_NAME


def import_source(
    source: Path, run: Path | None, options: Mapping[str, Any], progress: Progress | None = None
) -> dict[str, Any]:
    """Read a source, store it in a run's folder, and return a description of it in plain values.

    Args:
        source: as `StartFrom` has it.
        run: folder of the run; None to store nothing.
        options: of `StartFrom`.
        progress: called with what is done.

    Raises:
        UsageError: the source cannot be read, or the run has begun.
    """
    start = StartFrom(source.resolve(), **options)
    parts = read_parts(source, is_trusted=start.trust, progress=progress)
    if not parts.weights:
        raise UsageError(f"{source}: found no weights (tensors by name)")
    if start.model is not None and start.model not in parts.weights:
        raise UsageError(
            f"{source}: found no weights under {start.model!r}; there are weights under {', '.join(map(repr, parts.weights))}"
        )
    if run is not None:
        parts = _without_unstorable(parts)
    about = _about(parts) | {"source": str(source), "run": None, "bytes": 0}
    if run is not None:
        about |= {"run": str(run), "bytes": _store(run, start, parts)}
    return about


def _without_unstorable(parts: ForeignParts) -> ForeignParts:
    """Leave out what may be a state, but holds objects: arguments, not a scheduler."""
    others = {}
    for name, value in parts.others.items():
        with suppress(UnencodableState):
            tree.encode(value, path=name, adapt=adapt, out_of_line=[])
            others[name] = value
    left = tuple(name for name in parts.others if name not in others)
    return ForeignParts(parts.weights, parts.optimizers, others, parts.left + left)


# RUN/start.


def _store(run: Path, start: StartFrom, parts: ForeignParts) -> int:
    """Write RUN/start; return the bytes written.

    Raises:
        UsageError: the run has begun, or a source is stored already.
        UnencodableState: the source holds what cannot be stored safely.
    """
    if any(run.glob("rank*/checkpoints/*")):  # the first is written before the first step
        raise UsageError(f"{run}: the run has already begun. Import into a new folder")
    if (run / FOLDER).exists():
        raise UsageError(
            f"{run / FOLDER}: another import has already created this folder. Delete it, or import into a new folder"
        )
    options = {**asdict(start), "path": str(start.path), "missing": list(start.missing), "unexpected": list(start.unexpected)}
    meta = {
        "options": options,
        "weights": parts.weights,
        "optimizers": parts.optimizers,
        "others": parts.others,
        "left": list(parts.left),
    }
    snapshot = Snapshot({}, meta)
    snapshot.encode(adapt)
    SnapshotPool().hold(snapshot)
    make_folder(run)
    about = {"step": 0, "sequence": 0, "chain": "0", "timeline": 1, "run": "", "environment": {}, "created_at": time.time()}
    return write_checkpoint(run, FOLDER, snapshot, about)


def is_stored(run: Path) -> bool:
    """Return True if a source is stored for the run."""
    return (run / FOLDER).is_dir()


def read(run: Path) -> tuple[StartFrom, ForeignParts]:
    """Read RUN/start.

    Raises:
        UsageError: it is damaged.
    """
    try:
        with Checkpoint(run / FOLDER) as checkpoint:
            meta = checkpoint.meta(make_array=make_array, make_extension=make_extension)
    except CorruptCheckpoint as error:
        raise UsageError(f"{error.path}: {error.why}. Import it again") from None
    parts = ForeignParts(meta["weights"], meta["optimizers"], meta["others"], tuple(meta["left"]))
    return StartFrom(**meta["options"]), parts


def identity(run: Path) -> str:
    """Return a text that differs between stored sources; empty if RUN/start cannot be read: only a new run needs it."""
    with suppress(DataError, CannotRead), Checkpoint(run / FOLDER) as checkpoint:
        return repr(sorted((name, about["xxh3_64"]) for name, about in checkpoint.manifest["tensors"].items()))
    return ""


# The description.


def _about(parts: ForeignParts) -> dict[str, Any]:
    return {
        "weights": {key: _weights(weights) for key, weights in parts.weights.items()},
        "optimizers": {which or "optimizer": _parameters_of(state) for which, state in parts.optimizers.items()},
        "others": list(parts.others),
        "not_used": list(parts.left),
    }


def _weights(weights: StateDict) -> dict[str, Any]:
    tensors = {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}
    return {
        "elements": sum(value.numel() for value in tensors.values()),
        "bytes": sum(value.numel() * value.element_size() for value in tensors.values()),
        "not_finite": [name for name, value in tensors.items() if not _is_finite(value)],
        "tensors": {name: [str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in tensors.items()},
    }


def _is_finite(value: torch.Tensor) -> bool:
    if not (value.is_floating_point() or value.is_complex()) or value.itemsize < 2 or value.layout is not torch.strided:
        return True
    return bool(torch.isfinite(value).all())


def _parameters_of(state: Mapping[str, Any]) -> int:
    """Return how many parameters an optimizer's state is of."""
    names = {key.removeprefix("state.").rpartition(".")[0] for key in map(str, state) if key.startswith("state.")}
    held = state.get("state", {})
    return len(names) + (len(held) if isinstance(held, Mapping) else 0)
