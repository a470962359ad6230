"""`tranlogs import`: what a source holds, in plain values, and into a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tranlogs.errors import UsageError
from tranlogs.recovery.recover import Progress

from .prepared import prepare
from .settings import StartFrom
from .source import Parts, StateDict, read_parts


def import_source(
    source: Path, run: Path | None, options: Mapping[str, Any], progress: Progress | None = None
) -> dict[str, Any]:
    """Read a source, say what is in it, and put it into the folder of a run that is yet to begin.

    Args:
        source: a .pt or .safetensors file, or a folder of torch.distributed.checkpoint.
        run: folder of the run; None only to look.
        options: of `StartFrom`.
        progress: told what is done.

    Raises:
        UsageError: the source is not read, or the run has begun.
    """
    start = StartFrom(source.resolve(), **options)
    parts = read_parts(source, is_trusted=start.trust, progress=progress)
    if not parts.weights:
        raise UsageError(f"{source}: no weights are in it (tensors by name)")
    if start.model is not None and start.model not in parts.weights:
        raise UsageError(f"{source}: no weights lie under {start.model!r}, but under {', '.join(map(repr, parts.weights))}")
    about = _about(parts) | {"source": str(source), "run": None, "bytes": 0}
    if run is not None:
        about |= {"run": str(run), "bytes": prepare(run, start, parts)}
    return about


def _about(parts: Parts) -> dict[str, Any]:
    return {
        "weights": {key: _weights(weights) for key, weights in parts.weights.items()},
        "optimizers": {which or "optimizer": _parameters_of(state) for which, state in parts.optimizers.items()},
        "others": list(parts.others), "not_used": list(parts.left),
    }  # fmt: skip


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
    """Of how many parameters an optimizer has state."""
    names = {key.removeprefix("state.").rpartition(".")[0] for key in map(str, state) if key.startswith("state.")}
    held = state.get("state", {})
    return len(names) + (len(held) if isinstance(held, Mapping) else 0)
