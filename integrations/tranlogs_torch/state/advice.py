"""What to do about what a resume does not bring back, in the words of the face through which the run is used.

A script calls the optimizer itself, or what `log_prepared` returns (accelerate). Whoever gives a callback to a trainer has
neither, and is told what can be done there.
"""

from __future__ import annotations

from typing import Literal

from tranlogs.training import CAUSES, Face

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
