"""How a journal is, in words: problems first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tranlogs.base.quantities import format_bytes
from tranlogs.catalog import CheckpointRow
from tranlogs.catalog.lineage import is_on_lineage
from tranlogs.retention.budget import trace_newest_lineage
from tranlogs.retention.exposure import Exposure, History, exposures

from ..dashboard.pages.board import Shown
from .watch import Seen

Level = Literal["problem", "attention", "fine", "idle"]
LEVELS: tuple[Level, ...] = ("problem", "attention", "fine", "idle")


@dataclass(frozen=True, slots=True)
class State:
    """In words.

    Attributes:
        level: how bad it is.
        headline: the most important thing.
        more: what else is not as it should be.
    """

    level: Level
    headline: str
    more: tuple[str, ...] = ()


def state_of(shown: Shown) -> State:
    """What there is to say about a journal (pure)."""
    seen = shown.seen
    if seen is None:
        return State("problem", f"The journal cannot be read: {shown.problem}")
    problems, attention = _problems(shown, seen), _attention(seen)
    said = problems + attention
    if said:
        return State("problem" if problems else "attention", said[0], tuple(said[1:]))
    committed = seen.rows.marks.committed
    if not _is_alive(seen):
        how = "" if seen.owner is None or not seen.owner.has_closed else " The run was closed."
        return State("idle", f"No process trains.{how} The next one goes on after step {committed:,}.")
    if not committed:
        return State("fine", "The run holds no step yet.")
    return State("fine", f"All steps up to {committed:,} are safe if the process dies.")


def exposures_of(seen: Seen, history: History) -> tuple[Exposure, Exposure, Exposure]:
    """What would be lost now."""
    anchor_step = seen.anchor.step if seen.anchor is not None else 0
    return exposures(
        seen.rows.marks,
        checkpoint_step=anchor_step,
        history=history,
        incidents=seen.rows.incidents,
        store=seen.rows.store,
        in_memory=seen.in_memory,
    )


def history_of(shown: Shown, seen: Seen) -> History:
    """What was committed when, up to the evaluation that is shown."""
    before = [(row.at, row.committed) for row in shown.history if row.at < seen.at]
    return [*before, (seen.at, seen.rows.marks.committed)]


def _problems(shown: Shown, seen: Seen) -> list[str]:
    found = [f"The journal cannot be read now, and what follows is old: {shown.problem}"] if shown.problem else []
    found += [
        f"Logging is suspended since step {one.from_step:,}: {one.why}. What is trained meanwhile is in no log."
        for one in seen.rows.incidents
        if one.to_step is None
    ]
    newest, anchor = _newest_checkpoint(seen), seen.anchor
    if newest is not None and (anchor is None or anchor.sequence < newest.sequence):
        instead = "no other is sound" if anchor is None else f"recovery begins at the one of step {anchor.step:,}"
        found.append(f"The checkpoint of step {newest.step:,} is damaged; {instead}.")
    return found


def _newest_checkpoint(seen: Seen) -> CheckpointRow | None:
    """The newest on the way to the newest step, sound or not."""
    limits = trace_newest_lineage(seen.rows.checkpoints, seen.rows.timelines)
    return max((row for row in seen.rows.checkpoints if is_on_lineage(row, limits)), key=lambda row: row.sequence, default=None)


def _attention(seen: Seen) -> list[str]:
    store = seen.rows.store
    owner = seen.owner
    found = (
        [
            f"Process {owner.pid} on {owner.host} died without closing the run; the next one goes on after step "
            f"{seen.rows.marks.committed:,}."
        ]
        if owner is not None and not owner.is_alive and not owner.has_closed
        else []
    )
    found += [f"Nothing is shipped to {store.url} now: {store.problem}."] if store is not None and store.problem else []
    found += [f"Under-replicated in {store.url}: {store.copies_missing}."] if store is not None and store.copies_missing else []
    if not seen.pruning.wants_checkpoint:
        return found
    what = (
        "its trainer is asked for a checkpoint, behind which there is more to give up."
        if _is_alive(seen)
        else "no trainer is there to take a checkpoint. --compact makes one from the log; or give it a larger budget."
    )
    return [*found, f"What recovery needs is above the budget ({format_bytes(seen.pruning.bytes_after)}): {what}"]


def _is_alive(seen: Seen) -> bool:
    return seen.owner is not None and seen.owner.is_alive
