"""Random number generators: torch's (CPU and GPUs), numpy's and Python's global ones, and a loader's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tranlogs.records import Fixed
from tranlogs.training import HostRng, Parts, numpy_state, python_state, set_host_rng


def get_rng(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """Return the state of all generators in a form that can be encoded."""
    return {"python": python_state(), "numpy": numpy_state(), **_torchs(generators)}


def _torchs(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if generators:
        state["generators"] = [g.get_state() for g in generators]
    return state


class KeptRng:
    """The state of all generators, as the same object as long as nobody draws; Python's and numpy's are parts of their own."""

    def __init__(self) -> None:
        self._host, self._parts = HostRng(), Parts()
        self._torch = b""
        self._kept: Fixed | None = None

    def now(self) -> Fixed:
        """Return the state now."""
        has_drawn, own = self._host.has_drawn(), torch.default_generator.get_state().numpy().tobytes()
        if self._kept is None or has_drawn or own != self._torch or torch.cuda.is_initialized():
            self._torch, self._kept = own, Fixed({**self._parts.under("", self._host.state), **_torchs()})
        return self._kept


def set_rng(state: dict[str, Any], generators: Sequence[torch.Generator] = ()) -> None:
    """Set all of them. The states of the host may be wrapped, as `KeptRng` returns them."""
    state = {name: found.value if isinstance(found, Fixed) else found for name, found in state.items()}
    torch.set_rng_state(_own(state["torch"]))
    set_host_rng(state)
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_own(t) for t in state["cuda"]])
    for generator, own in zip(generators, state.get("generators", ()), strict=False):
        generator.set_state(_own(own))


def _own(state: torch.Tensor) -> torch.Tensor:
    return state.clone()  # set_state may keep the memory it is given
