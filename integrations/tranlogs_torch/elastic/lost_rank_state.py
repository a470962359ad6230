"""The state of a rank whose journal is lost, from the checkpoints of other ranks.

Weights and optimizer state are the same on all ranks. The rank's own state (random numbers, buffers, the position in the data)
at each checkpoint is also in the checkpoint of the previous rank.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from tranlogs.base.errors import CorruptCheckpoint, StateMismatch
from tranlogs.records import Checkpoint, tree

from ..data.rng import get_rng
from ..state.state import TorchState
from ..tensors import arrays


def packed(body: dict[str, Any]) -> bytes:
    """Return a boundary's body in bytes."""
    return tree.encode(body, path="", adapt=arrays.adapt)


def unpacked(blob: bytes) -> dict[str, Any]:
    """Return the boundary's body that `packed` has encoded."""
    body: dict[str, Any] = tree.decode(blob, make_array=arrays.make_array, make_extension=arrays.make_extension)
    return body


def adopt(state: TorchState, sources: Sequence[Path], rank: int, built: dict[str, Any] | None) -> list[str]:
    """Set all state from checkpoints of other ranks, as `GroupState.adopt` describes.

    Args:
        state: state of this rank.
        sources: folders of checkpoints of one step.
        rank: rank of this process.
        built: the rank's own state as the script built it, if the checkpoints are of the first step; else None.

    Returns:
        Notes on what was not brought back.
    """
    blob = _mirrored(sources, rank) or (packed(built) if built is not None else b"")
    with Checkpoint(sources[0]) as checkpoint:
        if differences := state.differences(checkpoint):
            raise StateMismatch(sources[0], differences)
        state.restore(checkpoint)
        boundary = _meta(checkpoint)["boundary"]
    if blob:
        state.set_auxiliary(unpacked(blob))
        return []
    rng = seeded(f"{sources[0].name} {rank}")
    state.set_auxiliary({**boundary, "rng": rng, "start_rng": rng})
    return [
        f"the journal of rank {rank} is gone, and no copy has what only that rank kept: it continues with the buffers of "
        "another rank and with new random states"
    ]


def _mirrored(sources: Sequence[Path], rank: int) -> bytes:
    """Return the rank's own state, read from the checkpoint that contains it."""
    for source in sources:
        with suppress(CorruptCheckpoint), Checkpoint(source) as checkpoint:
            blob: bytes = _meta(checkpoint).get("mirror", {}).get(rank, b"")
            if blob:
                return blob
    return b""


def _meta(checkpoint: Checkpoint) -> dict[str, Any]:
    meta: dict[str, Any] = checkpoint.meta(make_array=arrays.make_array, make_extension=arrays.make_extension)
    return meta


def seeded(name: str) -> dict[str, Any]:
    """Seed the random generators with a hash of the name, and return their states."""
    seed = xxhash.xxh3_64_intdigest(name.encode())
    torch.manual_seed(seed & (1 << 63) - 1)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    return get_rng()
