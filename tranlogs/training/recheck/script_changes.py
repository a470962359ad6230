"""Messages about changes that a script makes between `recover()` and its loop."""

from __future__ import annotations

from collections.abc import Sequence

CHANGED_NOW = "the script has changed weights, hyper-parameters or other state before its loop"
CHANGED_BEFORE = "the script had changed weights, hyper-parameters or other state before its loop, in that unit"

LEFT_NOW = "the script has left the loop in which it had stopped before that loop took a batch"


def describe_script_change(what: str) -> str:
    """Return a text on something that the script has set."""
    return f"{what} was changed between recover() and the first batch; training continues with the new value"


def describe_moved(moved: Sequence[str]) -> str:
    """Return a text on what the script has set and the newest unit has changed, too.

    Args:
        moved: what it is, in words; at least one.
    """
    more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
    return (
        f"the script has changed {moved[0]}{more} where recover() has landed, and so did the run in its newest unit, before "
        "the crash. Training continues after that unit with the script's value. If the script makes the value from the one "
        "that it finds, give recheck=False: recover() then lands after that unit"
    )
