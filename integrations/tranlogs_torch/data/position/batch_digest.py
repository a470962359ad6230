"""A hash of a batch, with which a resume recognizes batches that it reads again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from ...tensors import arrays

_DIGEST_BYTES = 1 << 16  # of each tensor and array


def digest(data: Any, seed: int) -> int:
    """Return a hash of a batch: the start of each tensor and array, strings, numbers, and attributes of other objects."""
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, (list, tuple)):
        for part in data:
            seed = digest(part, seed)
        return seed
    if isinstance(data, torch.Tensor) and data.device.type == "cpu" and data.layout is torch.strided:
        data = arrays.flat_bytes(data.detach().reshape(-1)[:_DIGEST_BYTES])
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1)[:_DIGEST_BYTES].tobytes()
    if isinstance(data, (str, int, float, bool)):
        data = repr(data).encode()
    if isinstance(data, bytes):
        return xxhash.xxh3_64_intdigest(data, seed=seed)
    return digest(vars(data), seed) if hasattr(data, "__dict__") and not isinstance(data, torch.Tensor) else seed
