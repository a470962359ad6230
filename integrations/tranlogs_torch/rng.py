"""Random number generators: torch's (CPU and GPUs), numpy's and Python's global ones, and a loader's own."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tranlogs.codec.tree import Fixed

_WORDS = struct.Struct("<625I")


def get_rng(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """The state of all of them, encodable."""
    version, words, gauss = random.getstate()
    kind, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": (version, _WORDS.pack(*words), gauss),
        "numpy": (kind, key, position, has_gauss, cached),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if generators:
        state["generators"] = [g.get_state() for g in generators]
    return state


class KeptRng:
    """The state of all generators, as the same object as long as nobody draws."""

    def __init__(self) -> None:
        self._seen: Any = None
        self._kept: Fixed | None = None

    def now(self) -> Fixed:
        """Return the state now."""
        python, (_, key, *rest) = random.getstate(), np.random.get_state(legacy=True)
        seen = (torch.get_rng_state().numpy().tobytes(), python, np.asarray(key).tobytes(), rest)
        if self._kept is None or seen != self._seen or torch.cuda.is_initialized():
            self._seen, self._kept = seen, Fixed(get_rng())
        return self._kept


def set_rng(state: dict[str, Any], generators: Sequence[torch.Generator] = ()) -> None:
    """Set all of them."""
    torch.set_rng_state(_own(state["torch"]))
    version, words, gauss = state["python"]
    random.setstate((version, _WORDS.unpack(words), gauss))
    np.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_own(t) for t in state["cuda"]])
    for generator, own in zip(generators, state.get("generators", ()), strict=False):
        generator.set_state(_own(own))


def _own(state: torch.Tensor) -> torch.Tensor:
    return state.clone()  # set_state may keep the memory it is given
