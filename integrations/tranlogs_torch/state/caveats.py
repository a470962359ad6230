"""What keeps a recovery from being known as bit-exact, in words."""

from __future__ import annotations

from typing import Any

import torch

from tranlogs.training import Recovered
from tranlogs.training import judge_exactness as compared

from .extra_state import split
from .state import TorchState

LOADED_BEFORE = (
    "an optimizer had taken steps before recover(), so the script has loaded a checkpoint of its own. The log replaces what "
    "was loaded. A start_epoch from that file makes the script leave out epochs that the log leaves out as well: take the "
    "epochs from optimizer.epochs(...)"
)


def has_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if the optimizer has state of steps. Some make their state before the first step, and count 0 there."""
    return any(float(state.get("step", 1)) > 0 for state in optimizer.state.values() if state)


def caveats(state: TorchState, body: dict[str, Any]) -> list[str]:
    """What a script leaves out that a replay cannot show: each makes it impossible to tell whether the run is exact."""
    found = []
    if not state.modules:
        found.append(
            "no model=... was given: buffers (BatchNorm's statistics) are not recovered, and parameters are matched "
            "by their place"
        )
    found += lost_attributes(state)
    if state.extra.lost:
        found.append(f"the extra state of {', '.join(state.extra.lost)} cannot be stored safely and is not recovered")
    if body.get("is_implicit"):
        found.append(
            "the last step was taken outside of batches(), epochs(), steps() and loops over a tracked loader: the "
            "position in the data is the script's own, as are random numbers drawn between a step and the next "
            "forward pass. track(loader=...) is all that a plain loop over a DataLoader needs"
        )
    return found


def lost_attributes(state: TorchState) -> list[str]:
    """What optimizers that are not torch's keep on themselves and cannot be stored."""
    found = []
    for which, optimizer in state.optimizers.items():
        others = split(optimizer)[1]
        if others:
            own = ", ".join(f"self.{name}" for name in others)
            found.append(f"optimizer {which!r} keeps {own} outside its state and groups: that is not recovered")
    return found


def verdict(state: TorchState, found: Recovered) -> tuple[bool | None, list[str]]:
    """The core's, and what was not logged at all."""
    exact, notes = compared(found, state.fingerprint_kinds, compared="parameters")
    if state.stale:
        exact = None if exact is not False else False
        notes.append(f"optimizer state of {', '.join(sorted(state.stale))} is that of the checkpoint: it was not logged")
    return exact, notes
