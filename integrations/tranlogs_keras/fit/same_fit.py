"""Check that a fit is the one that the run holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tranlogs.base.errors import UsageError
from tranlogs.records import Checkpoint

from ..data import other_data
from ..run.newest_checkpoint import NewestCheckpoint
from ..run.recovery import ScriptChanges
from ..run.run_parts import RunParts
from ..run_matching import FinishedFits, changed_rates, check_identity, compare_identities
from .earlier_fits import identity_of

finished = FinishedFits()


def require_same_fit(
    parts: RunParts, newest: NewestCheckpoint, identity: dict[str, Any], number: int, *, accepts_changes: bool
) -> ScriptChanges:
    """Return what differs from the recorded fit of this number, if the user accepts changes.

    Raises:
        UsageError: something differs, and is not accepted.
    """
    boundary = newest.boundary
    held = boundary["position"]["fit"]
    recorded = boundary["identity"] if held == number else identity_of(boundary["earlier"], number) if held > number else None
    changes = [] if recorded is None else compare_identities(recorded, identity)
    if not (changes and held == number and _has_other_variables(parts, newest)):
        if not accepts_changes:
            check_identity(parts.run, changes)
        finished.check(parts.run, parts.model)
    return ScriptChanges(changes, {} if recorded is None else changed_rates(recorded, identity))


def require_same_data(run: Path, recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what of the data is not as it was, one sentence each.

    Raises:
        UsageError: a position in the recorded data means nothing in these.
    """
    if recorded["kind"] != now["kind"]:
        raise UsageError(
            f"{run}: the data were {recorded['kind']}, now they are {now['kind']}. A position in one kind has no meaning in "
            "the other. Give fit the same kind of data, and TranLogsCallback the same data_order, as the run had"
        )
    return other_data(recorded, now)


def _has_other_variables(parts: RunParts, newest: NewestCheckpoint) -> bool:
    """Return True if recovery will refuse the model, and name each variable."""
    with Checkpoint(newest.path) as checkpoint:
        return bool(parts.state.differences(checkpoint))
