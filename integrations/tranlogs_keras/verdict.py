"""How far a replay is known to be bit-exact, in words."""

from __future__ import annotations

from tranlogs.recovery.recover import Recovered

from .state import KerasState


def verdict(state: KerasState, found: Recovered) -> tuple[bool | None, list[str]]:
    """True if every redone step was compared and equal, False if one differed, None if it cannot be told; and why."""
    exact: bool | None = True
    notes = []
    if found.replayed and not state.fingerprint_kinds:
        exact = None
    if "sample" in state.fingerprint_kinds:
        exact = None
        notes.append('redone steps were compared by a rotating sample of the variables, which proves nothing for the others; '
                     'fingerprint="full" compares them all')  # fmt: skip
    if found.divergence is not None:
        exact = False
        first = found.divergence
        notes.append(f"the first redone step that differs is step {first.step}, in {first.tensor}: something in this "
                     "environment, or a write that went unnoticed, rounds or sets it otherwise")  # fmt: skip
    return exact, notes
