"""Verdict on a recovery: whether replay is known to be bit-exact, and the report."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from .recover import Recovered
from .report import RecoveryReport


def judge_exactness(found: Recovered, kinds: Collection[str], *, compared: str) -> tuple[bool | None, list[str]]:
    """Return whether replay was bit-exact, and the reasons for doubt, one sentence each.

    Args:
        found: the recovery.
        kinds: the kinds of fingerprints that were compared: "full", "sample", "device".
        compared: what the fingerprints are taken of ("parameters").

    Returns:
        True if every redone step was compared and equal, False if a step differed, None if this is not known.
    """
    exact: bool | None = True
    notes = []
    if found.replayed and not kinds:
        exact = None
    if "sample" in kinds:
        exact = None
        notes.append(
            f"redone steps were compared by a rotating sample of the {compared}, which does not cover the rest; "
            'fingerprint="full" compares all of them'
        )
    if found.divergence is not None:
        exact = False
        first = found.divergence
        notes.append(
            f"step {first.step} is the first redone step that differs, in {first.tensor}: this environment rounds differently, "
            "or a write that was not logged set the value"
        )
    return exact, notes


def make_report(
    found: Recovered,
    *,
    exact: bool | None,
    notes: Iterable[str],
    place: tuple[int, int, int],
    seconds: float,
    timeline: int | None = None,
) -> RecoveryReport:
    """Return the report of a recovery, with each note once.

    Args:
        found: the recovery.
        exact: the verdict of `judge_exactness`.
        notes: what else to report, one sentence each.
        place: number of the loop, from 1, its epoch, from 0, and the number of its batches that are done.
        seconds: the time that recovery took.
        timeline: the timeline of the next record; None if it is that of the last one.
    """
    loop, epoch, batch = place
    return RecoveryReport(
        step=found.position.step,
        loop=loop,
        batch=batch,
        epoch=epoch,
        timeline=found.position.timeline if timeline is None else timeline,
        checkpoint_step=found.plan.checkpoint.step,
        replayed=found.replayed,
        seconds=seconds,
        seconds_replay=found.seconds_replay,
        exact=exact,
        first_divergent_step=found.divergence.step if found.divergence else None,
        notes=tuple(dict.fromkeys(notes)),
        is_at_start=found.position.sequence == 0 and exact is not False and not found.has_losses and not found.steps_lost,
    )
