"""The state of a journal in words, problems first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tranlogs.base.quantities import format_bytes
from tranlogs.catalog import CheckpointRow
from tranlogs.catalog.rows import is_on_lineage
from tranlogs.retention.lost_work import CommitHistory, LostWork, estimate_lost_work
from tranlogs.retention.prune import trace_newest_lineage

from ...watching.watch import Evaluation
from .board import JournalView

Level = Literal["problem", "attention", "fine", "idle"]
LEVELS: tuple[Level, ...] = ("problem", "attention", "fine", "idle")


@dataclass(frozen=True, slots=True)
class JournalHealth:
    """The state of a journal in words: how bad it is, the most important fact, and other facts that need attention."""

    level: Level
    headline: str
    more: tuple[str, ...] = ()


def describe_health(view: JournalView) -> JournalHealth:
    """Describe the state of a journal (pure)."""
    evaluation = view.evaluation
    if evaluation is None:
        return JournalHealth("problem", f"The journal cannot be read: {view.problem}")
    problems, attention = _problems(view, evaluation), _attention(evaluation)
    facts = problems + attention
    if facts:
        return JournalHealth("problem" if problems else "attention", facts[0], tuple(facts[1:]))
    committed = evaluation.rows.marks.committed
    if not _is_alive(evaluation):
        how = "" if evaluation.owner is None or not evaluation.owner.has_closed else " The run was closed."
        return JournalHealth("idle", f"No process is training.{how} The next one will continue after step {committed:,}.")
    if not committed:
        return JournalHealth("fine", "The run has no steps yet.")
    if evaluation.redo_step is not None and evaluation.redo_step < committed:
        first, again = evaluation.redo_step + 1, f"If the process dies, training goes on after step {committed:,}"
        return JournalHealth("fine", f"{again}: it computes the steps from {first:,} on again.")
    return JournalHealth("fine", f"All steps up to {committed:,} are safe if the process dies.")


def current_lost_work(evaluation: Evaluation, history: CommitHistory) -> tuple[LostWork, LostWork, LostWork]:
    """Return what would be lost now."""
    anchor_step = evaluation.anchor.step if evaluation.anchor is not None else 0
    return estimate_lost_work(
        evaluation.rows.marks,
        checkpoint_step=anchor_step,
        redo_step=evaluation.redo_step,
        history=history,
        incidents=evaluation.rows.incidents,
        store=evaluation.rows.store,
        in_memory=evaluation.in_memory,
    )


def commit_history(view: JournalView, evaluation: Evaluation) -> CommitHistory:
    """Return which steps were committed when, up to the evaluation that is shown."""
    before = [(row.at, row.committed) for row in view.history if row.at < evaluation.at]
    return [*before, (evaluation.at, evaluation.rows.marks.committed)]


def _problems(view: JournalView, evaluation: Evaluation) -> list[str]:
    found = [f"The journal cannot be read now, and the rest of this page is old: {view.problem}"] if view.problem else []
    found += [
        f"Logging has been suspended since step {one.from_step:,}: {one.why}. Steps trained meanwhile are not logged."
        for one in evaluation.rows.incidents
        if one.to_step is None
    ]
    newest, anchor = _newest_checkpoint(evaluation), evaluation.anchor
    if newest is not None and (anchor is None or anchor.sequence < newest.sequence):
        instead = "no other is intact" if anchor is None else f"recovery starts from the one of step {anchor.step:,}"
        found.append(f"The checkpoint of step {newest.step:,} is damaged; {instead}.")
    return found


def _newest_checkpoint(evaluation: Evaluation) -> CheckpointRow | None:
    """Return the newest checkpoint of the newest timeline or those that lead to it, intact or not."""
    limits = trace_newest_lineage(evaluation.rows.checkpoints, evaluation.rows.timelines)
    return max(
        (row for row in evaluation.rows.checkpoints if is_on_lineage(row, limits)), key=lambda row: row.sequence, default=None
    )


def _attention(evaluation: Evaluation) -> list[str]:
    store = evaluation.rows.store
    owner = evaluation.owner
    found = (
        [
            f"Process {owner.pid} on {owner.host} died without closing the run; the next one will continue after step "
            f"{evaluation.rows.marks.committed:,}."
        ]
        if owner is not None and not owner.is_alive and not owner.has_closed
        else []
    )
    found += [f"Shipping to {store.url} has stopped: {store.problem}."] if store is not None and store.problem else []
    if not evaluation.pruning.wants_checkpoint:
        return found
    what = (
        "a checkpoint was requested from its trainer, after which more can be pruned."
        if _is_alive(evaluation)
        else "no trainer is running to take a checkpoint. Raise the budget, or start the trainer again."
    )
    return [
        *found,
        f"The data that recovery needs exceed the budget ({format_bytes(evaluation.pruning.bytes_after)}): {what}",
    ]


def _is_alive(evaluation: Evaluation) -> bool:
    return evaluation.owner is not None and evaluation.owner.is_alive
