"""How far a replay is known to be bit-exact, in words, and the report that says so."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .recover import Recovered
from .report import RecoveryReport


def verdict(found: Recovered, kinds: Collection[str], *, of: str) -> tuple[bool | None, list[str]]:
    """True if every redone step was compared and equal, False if one differed, None if it cannot be told; and why.

    Args:
        found: the recovery.
        kinds: of the fingerprints that were compared: "full", "sample", "device".
        of: what they are taken of ("parameters").
    """
    exact: bool | None = True
    notes = []
    if found.replayed and not kinds:
        exact = None
    if "sample" in kinds:
        exact = None
        notes.append(f"redone steps were compared by a rotating sample of the {of}, which proves nothing for the others; "
                     'fingerprint="full" compares them all')  # fmt: skip
    if found.divergence is not None:
        exact = False
        first = found.divergence
        notes.append(f"the first redone step that differs is step {first.step}, in {first.tensor}: something in this "
                     "environment, or a write that went unnoticed, rounds or sets it otherwise")  # fmt: skip
    return exact, notes


def report_of(found: Recovered, *, exact: bool | None, notes: Iterable[str], batch: int, epoch: int, seconds: float,
              timeline: int | None = None) -> RecoveryReport:  # fmt: skip
    """The report of a recovery; each note once. `timeline`: of the next record, if that is not the one of the last."""
    return RecoveryReport(
        step=found.position.step, batch=batch, epoch=epoch,
        timeline=found.position.timeline if timeline is None else timeline,
        checkpoint_step=found.plan.checkpoint.step, replayed=found.replayed, seconds=seconds,
        seconds_replay=found.seconds_replay, exact=exact,
        first_divergent_step=found.divergence.step if found.divergence else None, notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip
