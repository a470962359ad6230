"""Choose where to start and where to land: a pure decision over facts.

target      checkpoint          entries after it                 decision
newest      sound, chained      up to the last boundary          land there; the checkpoint with the furthest landing,
                                                                 and of these the newest, wins
newest      damaged             -                                passed over, said in the notes
step S      sound, at most S    a boundary at S                  land on it
step S      sound, at most S    no boundary at S                 refused, with the covered steps around it
any         none                -                                refused: nothing to recover from
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import RecoveryError
from ..catalog import CheckpointRow
from ..catalog.lineage import Limits, is_on
from ..log.record import EntryKind, Position
from .history import History, Link

_HOLES_MAX = 3  # told one by one; a power cut can leave hundreds behind what was synced


@dataclass(frozen=True, slots=True)
class Plan:
    """Load `checkpoint`, redo `links` (their last is a boundary), land on `position`.

    `source` is the journal whose checkpoint it is, where that is another rank's.
    """

    checkpoint: CheckpointRow
    links: tuple[Link, ...]
    position: Position
    has_later: bool  # committed boundaries exist behind the landing
    notes: tuple[str, ...]
    source: Path | None = None


def plan_recovery(checkpoints: Sequence[CheckpointRow], history: History, limits: Limits, *,
                  timeline: int, step: int | None = None, sequence: int | None = None, broken: Collection[str] = (),
                  last_good: dict[int, int] | None = None) -> Plan:  # fmt: skip
    """Plan a recovery.

    Args:
        checkpoints: the published ones.
        history: the chained entries.
        limits: the lineage of `timeline`.
        timeline: the one to recover on.
        step: the step to land on; None for the newest boundary.
        sequence: number of the last entry that may be redone; None for all.
        broken: names of checkpoints found damaged.
        last_good: for segments with damaged entries, ordinal -> the sequence number before the first of them.

    Raises:
        RecoveryError: there is no sound checkpoint, or `step` is not covered.
    """
    usable = [row for row in checkpoints if is_on(row, limits) and row.name not in broken]
    notes = [f"checkpoint of step {row.step} is damaged and was passed over" for row in checkpoints if row.name in broken]
    options = []
    for row in usable:
        if (step is not None and row.step > step) or (sequence is not None and row.sequence > sequence):
            continue
        links = _sound(history.after(row.sequence, int(row.chain, 16)), last_good or {})
        if step is not None:
            links = [link for link in links if link.step <= step]
        if sequence is not None:
            links = [link for link in links if link.sequence <= sequence]
        landing = _last_boundary(links)
        options.append((row, links[: landing + 1]))
    if not options:
        raise RecoveryError(_nothing(usable, broken, step))
    row, links = max(options, key=lambda option: (_end(option), option[0].sequence))
    end = links[-1].location.head if links else None
    position = Position(row.sequence, row.step, int(row.chain, 16), timeline)
    if end is not None:
        position = Position(end.sequence, end.step, end.digest, timeline)
    if step is not None and position.step != step:
        raise RecoveryError(_not_covered(step, usable, history))
    later = is_later(history, [row for row in checkpoints if is_on(row, limits)], position)
    if later:
        notes += history.holes[:_HOLES_MAX]
        notes += [f"{len(history.holes) - _HOLES_MAX} more holes"] if len(history.holes) > _HOLES_MAX else []
    return Plan(row, tuple(links), position, later, tuple(notes))


def _sound(links: list[Link], last_good: dict[int, int]) -> list[Link]:
    for i, link in enumerate(links if last_good else ()):
        limit = last_good.get(link.segment.row.ordinal)
        if limit is not None and link.sequence > limit:
            return links[:i]
    return links


def _last_boundary(links: list[Link]) -> int:
    for i in range(len(links) - 1, -1, -1):
        if links[i].kind == EntryKind.BOUNDARY:
            return i
    return -1


def _end(option: tuple[CheckpointRow, list[Link]]) -> int:
    row, links = option
    return links[-1].sequence if links else row.sequence


def is_later(history: History, checkpoints: Sequence[CheckpointRow], position: Position) -> bool:
    """Return True if a boundary or a checkpoint lies behind a position."""
    for link in itertools.chain.from_iterable(reversed(run) for run in reversed(history.runs)):
        if link.sequence <= position.sequence:
            break
        if link.kind == EntryKind.BOUNDARY:
            return True
    return any(row.sequence > position.sequence for row in checkpoints)


def _nothing(usable: Sequence[CheckpointRow], broken: Collection[str], step: int | None) -> str:
    if usable and step is not None:
        oldest = min(row.step for row in usable)
        what = f"step {step} is not covered: the oldest checkpoint is of step {oldest}"
        return f"{what} (`keep=` keeps more of them; recover() without a step goes on from the last one)"
    if broken:
        return f"no sound checkpoint is left ({len(broken)} are damaged: {', '.join(sorted(broken))})"
    return "the run has no checkpoint"


def _not_covered(step: int, checkpoints: Sequence[CheckpointRow], history: History) -> str:
    boundaries = {link.step for run in history.runs for link in run if link.kind == EntryKind.BOUNDARY}
    covered = sorted(boundaries | {row.step for row in checkpoints})
    below = [s for s in covered if s < step]
    above = [s for s in covered if s > step]
    around = [str(s) for s in below[-1:] + above[:1]]
    verb = "is" if len(around) == 1 else "are"
    return f"step {step} is not covered: no sound boundary lies there; the nearest {verb} {' and '.join(around) or 'none'}"
