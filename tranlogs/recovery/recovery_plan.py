"""Plan of a recovery: where to start and where to end. A pure decision over facts.

target      checkpoint          records after it                 decision
newest      sound, chained      up to the last boundary          end there; the checkpoint that leads furthest wins, and of
                                                                 equally good ones the newest
newest      sound, chained      steps without tensors            end before them; training has to compute them again
newest      damaged             -                                passed over, with a note
step S      sound, at most S    a boundary at S                  end at it
step S      sound, at most S    no boundary at S                 refused, with the nearest covered steps
step S      sound, at most S    steps without tensors            refused, with the step that redo reaches
any         none                -                                refused: nothing to recover from
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.errors import RecoveryError
from ..catalog import CheckpointRow
from ..catalog.rows import Limits, is_on_lineage
from ..log.record_format import Position
from .history import History, Link, Run

_HOLES_MAX = 3  # listed one by one; a power cut can leave hundreds after what was synced


@dataclass(frozen=True, slots=True)
class Target:
    """The place at which a recovery ends.

    Attributes:
        step: the step to end at; None for the newest boundary.
        sequence: the number of the last record to redo; None for all.
        checkpoint: the name of the checkpoint to start from; None for the one with the shortest replay.
        before_last_unit: True to end one unit before the newest boundary, if the log holds that unit and leads to its begin.
        compares: True to return the records of steps without tensors, which training computes again and compares.
    """

    step: int | None = None
    sequence: int | None = None
    checkpoint: str | None = None
    before_last_unit: bool = False
    compares: bool = False

    @property
    def is_newest(self) -> bool:
        """True if the recovery ends as near to the newest boundary as the log leads."""
        return self.step is None and self.sequence is None and self.checkpoint is None


NEWEST = Target()


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Plan of a recovery.

    Attributes:
        links: the records to redo; the last one is a boundary.
        has_later: True if the log holds committed boundaries after that position.
        source: the journal that holds the checkpoint, if it is another rank's; else None.
        recomputed: the records after that position which cannot be redone, because the log holds no tensors of some of their
            steps: training has to compute these again. The last one is a boundary.
    """

    checkpoint: CheckpointRow
    links: Sequence[Link]
    position: Position
    has_later: bool
    notes: tuple[str, ...]
    source: Path | None = None
    recomputed: Sequence[Link] = ()

    @property
    def end(self) -> Position:
        """The newest boundary that the log leads to, once training has computed again what cannot be redone."""
        return position_after(self.recomputed, self.position)

    @property
    def recomputed_steps(self) -> str:
        """The steps that cannot be redone, in words; "" if there are none."""
        first, last = self.position.step + 1, self.end.step
        return "" if last < first else f"step {last}" if last == first else f"steps {first} to {last}"


def plan_recovery(
    checkpoints: Sequence[CheckpointRow],
    history: History,
    limits: Limits,
    target: Target = NEWEST,
    *,
    broken: Collection[str] = (),
    last_good: dict[int, int] | None = None,
) -> RecoveryPlan:
    """Plan a recovery on the timeline that `limits` leads to, from the published checkpoints that are not `broken`.

    Args:
        last_good: for each segment with damaged records, by ordinal, the sequence number before the first damaged one.

    Raises:
        RecoveryError: there is no sound checkpoint, or the step of the target is not covered.
    """
    step, sequence = target.step, target.sequence
    timeline = next(number for number, limit in limits.items() if limit is None)
    usable = [row for row in checkpoints if is_on_lineage(row, limits) and row.name not in broken]
    notes = [f"checkpoint of step {row.step} is damaged and was passed over" for row in checkpoints if row.name in broken]

    def is_wanted(at: CheckpointRow | Link) -> bool:
        return (step is None or at.step <= step) and (sequence is None or at.sequence <= sequence)

    best: tuple[CheckpointRow, Run, Run] | None = None  # with the records to redo, and those to compute again
    ends = (
        link.sequence for run in reversed(history.runs) for link in reversed(run) if link.kind.is_boundary and is_wanted(link)
    )
    newest = next(ends, 0)
    for row in sorted(filter(is_wanted, usable), key=lambda row: -row.sequence):
        links = history.after(row)
        links = links[: bisect.bisect_left(links, True, key=lambda link: not is_wanted(link))]  # both numbers only rise
        links = _cut_to_boundary(_cut_damage(links, last_good or {}))
        redone = _cut_to_boundary(links[: links.find_covered()])
        option = row, redone, links[len(redone) :]
        if best is None or _get_end(row, redone) > _get_end(*best[:2]):
            best = option
        if _get_end(row, links) >= newest:  # An older checkpoint leads no further, and replays more.
            break
    if best is None:
        raise RecoveryError(_describe_no_checkpoint(usable, broken, step))
    row, redone, recomputed = best
    position = position_after(redone, Position(row.sequence, row.step, int(row.chain, 16), timeline))
    on_lineage = [row for row in checkpoints if is_on_lineage(row, limits)]
    has_later = has_later_boundary(history, on_lineage, position)
    plan = RecoveryPlan(row, redone, position, has_later, (), recomputed=recomputed)
    if step is not None and plan.end.step != step:
        raise RecoveryError(_describe_not_covered(step, usable, history))
    if step is not None and position.step != step:
        which = f"the log has no tensors of {plan.recomputed_steps}, which only training can compute again"
        raise RecoveryError(f"step {step} cannot be redone: {which}; redo reaches step {position.step}")
    for link, before in history.refused[:_HOLES_MAX]:
        notes.append(f"{link.segment.path}: {describe_refused(link, before)}")
    if has_later_boundary(history, on_lineage, plan.end):
        notes += history.holes[:_HOLES_MAX]
        notes += [f"{len(history.holes) - _HOLES_MAX} more holes"] if len(history.holes) > _HOLES_MAX else []
    return replace(plan, notes=tuple(notes))


def describe_refused(link: Link, before: int) -> str:
    """Return why a record of the history is refused, which follows one of step `before`."""
    return f"record {link.sequence} names step {link.step}, which cannot follow step {before}"


def has_later_boundary(history: History, checkpoints: Sequence[CheckpointRow], position: Position) -> bool:
    """Return True if a boundary or a checkpoint lies after a position."""
    for link in itertools.chain.from_iterable(reversed(run) for run in reversed(history.runs)):
        if link.sequence <= position.sequence:
            break
        if link.kind.is_boundary:
            return True
    return any(row.sequence > position.sequence for row in checkpoints)


def _cut_damage(links: Run, last_good: dict[int, int]) -> Run:
    """Return the links before the first damaged record."""
    for i, link in enumerate(links if last_good else ()):
        limit = last_good.get(link.segment.row.ordinal)
        if limit is not None and link.sequence > limit:
            return links[:i]
    return links


def _cut_to_boundary(links: Run) -> Run:
    """Return the links up to the last boundary."""
    end = len(links)
    while end and not links[end - 1].kind.is_boundary:
        end -= 1
    return links[:end]


def _get_end(row: CheckpointRow, links: Sequence[Link]) -> int:
    return links[-1].sequence if links else row.sequence


def position_after(links: Sequence[Link], start: Position) -> Position:
    """Return the position after records that follow a position."""
    if not links:
        return start
    head = links[-1].location.head
    return Position(head.sequence, head.step, head.digest, start.timeline)


def _describe_no_checkpoint(usable: Sequence[CheckpointRow], broken: Collection[str], step: int | None) -> str:
    if usable and step is not None:
        oldest = min(row.step for row in usable)
        what = f"step {step} is not covered: the oldest checkpoint is of step {oldest}"
        return f"{what} (`keep=` sets how many are kept; recover() without a step resumes at the newest one)"
    if broken:
        damaged = f"{len(broken)} {'is' if len(broken) == 1 else 'are'} damaged ({', '.join(sorted(broken))})"
        return (
            f"there is no sound checkpoint: {damaged}. `tranlogs verify` lists the damage. If the run was shipped to a store, "
            "`tranlogs pull` brings sound copies into a new folder; else start a new run in another folder"
        )
    return "the run has no checkpoint"


def _describe_not_covered(step: int, checkpoints: Sequence[CheckpointRow], history: History) -> str:
    boundaries = {link.step for run in history.runs for link in run if link.kind.is_boundary}
    covered = sorted(boundaries | {row.step for row in checkpoints})
    below = [s for s in covered if s < step]
    above = [s for s in covered if s > step]
    around = [str(s) for s in below[-1:] + above[:1]]
    verb = "is" if len(around) == 1 else "are"
    nearest = " and ".join(around) or "none"
    return f"step {step} is not covered: the log has no boundary at that step; the nearest {verb} {nearest}"
