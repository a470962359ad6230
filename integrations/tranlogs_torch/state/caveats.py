"""Reasons for which a recovery cannot be called bit-exact, as notes.

Advice is in the words of the face through which the run is used. A script calls the optimizer itself, or what `log_prepared`
returns (accelerate). Whoever gives a callback to a trainer has neither, and is told what can be done there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tranlogs.base.notes import Note
from tranlogs.training import CAUSES, Face, Recovered
from tranlogs.training import judge_exactness as compared

from .extra_state import split
from .state import TorchState

_LOADED_BEFORE = (
    "an optimizer had taken steps before recover(), so the script has loaded a checkpoint of its own. The log replaces what "
    "was loaded"
)


LONG_UNIT = Note(
    "outside-loops",
    "the loop has asked for no batch since 1000 steps, so a crash loses all of them",
    "If it was left by `break` while a variable holds its iterator, delete that variable",
)

IMPLICIT = Note(
    "outside-loops",
    "steps are taken outside of batches(), epochs() and steps(). They are logged, and the weights come back, but such a loop "
    "starts over after a crash, also one over a tracked loader, and a resume cannot be verified there",
    "Write `for epoch in optimizer.epochs(E):` and in it `for batch in epoch:`; a loop without a loader takes its turns from "
    "optimizer.steps(until=...), and an Engine of Ignite runs by run_engine",
)


def loaded_before(face: Face) -> Note:
    """Return the caveat of a script that has loaded a checkpoint of its own."""
    return Note("loaded-before", _LOADED_BEFORE, advise("loaded", face))


def has_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if the optimizer has counted a step, or has a momentum, which SGD makes in its first step.

    Other state proves nothing: some optimizers make it before they step, and one of the user's own may keep anything there.
    """
    states = [state for state in optimizer.state.values() if isinstance(state, dict)]
    return any(_is_positive(state.get("step")) or state.get("momentum_buffer") is not None for state in states)


def _is_positive(step: Any) -> bool:
    is_number = isinstance(step, (int, float)) or (isinstance(step, torch.Tensor) and step.numel() == 1)
    return is_number and float(step) > 0


def caveats(state: TorchState, *, is_outside: bool) -> list[Note]:
    """Return omissions of a script that replay cannot show. With any of them, it is not known whether the run is exact.

    Args:
        state: of the run.
        is_outside: True if the newest step was taken outside of all loops.
    """
    found = list[Note]()
    if not state.modules:
        lost = "buffers (BatchNorm's statistics) are not recovered, and parameters are matched by position"
        found.append(Note("not-recovered", f"no model=... was given, so {lost}"))
    found += lost_attributes(state)
    if state.extra.lost:
        text = f"the extra state of {', '.join(state.extra.lost)} cannot be stored safely and is not recovered"
        found.append(Note("not-recovered", text))
    if is_outside:
        found.append(IMPLICIT)
    return found


def untracked_scheduler(optimizers: Iterable[torch.optim.Optimizer], tracked: Iterable[Any]) -> list[Note]:
    """Return a caveat if a scheduler was made for one of the optimizers, and none is tracked.

    A scheduler writes `initial_lr` into the groups of its optimizer, and wraps its `step`. Scripts that compute learning rates
    by hand write `initial_lr` as well; they wrap nothing. One that was made for an optimizer around these is named once it has
    stepped, like other objects that start over.
    """
    if any(map(is_scheduler, tracked)):
        return []
    scheduled = (o for o in optimizers if any("initial_lr" in group for group in o.param_groups))
    if not any(hasattr(o.step, "_wrapped_by_lr_sched") for o in scheduled):
        return []
    text = "a scheduler was created for an optimizer, but none is tracked: without track(scheduler=...) it starts over"
    return [Note("starts-over", text)]


def lost_attributes(state: TorchState) -> list[Note]:
    """Return a caveat for each optimizer other than torch's with attributes that cannot be stored."""
    found = []
    for which, optimizer in state.optimizers.items():
        others = split(optimizer)[1]
        if others:
            own = ", ".join(f"self.{name}" for name in others)
            text = f"optimizer {which!r} keeps {own} outside its state and groups, which is not recovered"
            found.append(Note("not-recovered", text))
    return found


def verdict(state: TorchState, found: Recovered) -> tuple[bool | None, list[Note]]:
    """Return the core's verdict, with what was not logged at all."""
    exact, notes = compared(found, state.redone.kinds, compared="parameters")
    if state.redone.stale:
        exact = None if exact is not False else False
        text = f"optimizer state of {', '.join(sorted(state.redone.stale))} was not logged and is that of the checkpoint"
        notes.append(Note("not-recovered", text))
    return exact, notes


def is_scheduler(thing: Any) -> bool:
    """Return True for a learning-rate scheduler: torch's, accelerate's around it, and others by their name (timm's)."""
    thing = getattr(thing, "scheduler", thing)
    if isinstance(thing, LRScheduler) or hasattr(thing, "last_epoch"):
        return True
    is_named = any("sched" in f"{kind.__module__}.{kind.__name__}".lower() for kind in type(thing).__mro__)
    return is_named and isinstance(getattr(thing, "optimizer", None), Optimizer)


Case = Literal["gradients", "weights", "settings", "state", "order", "loaded", "generator"]

_KEEP = "keep it in a callback with state_dict() and load_state_dict(), or in a buffer of the model"
_SCRIPT: dict[Case, str] = {
    **CAUSES,  # type: ignore[dict-item]
    "loaded": "A start_epoch from that file is older than what the log has: take the epochs from optimizer.epochs(...)",
    "generator": "Give optimizer.track({key}={path}), in the names of the script, before recover(), or let the dataset draw "
    "from the global generators",
}
_CALLBACK: dict[Case, str] = {
    "gradients": "The trainer had other data or another state (a counter or a random generator that the dataset, its collate "
    f"function or a callback keeps to itself): {_KEEP}",
    "weights": f"Something besides the optimizer's step writes to them, by what starts anew: {_KEEP}",
    "settings": f"A callback sets it from something that starts anew: {_KEEP}",
    "state": f"It depends on something that starts anew: {_KEEP}",
    "order": f"A callback, or the model, decides by something that starts anew: {_KEEP}",
    "loaded": "Start the trainer without a checkpoint of its own: the log has the newer state",
    "generator": "Let the dataset draw from the global generators",
}


def advise(case: Case, face: Face) -> str:
    """Return what to do in a case, for the user of a face."""
    if face == "callback":
        return _CALLBACK[case]
    return _SCRIPT[case].replace("optimizer.", "log.") if face == "accelerate" else _SCRIPT[case]


def causes(face: Face) -> dict[str, str]:
    """Return the usual causes of a unit that differs from its record, with what to do, by kind of difference."""
    kinds: tuple[Case, ...] = ("gradients", "weights", "settings", "state", "order")
    return {kind: advise(kind, face) for kind in kinds}
