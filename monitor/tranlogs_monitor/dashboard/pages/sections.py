"""Facts for the sections of a journal's page; templates put them into sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tranlogs.retention.lost_work import CommitHistory, LostWork, estimate_seconds_since, has_store

from ...watching.watch import Evaluation
from .curves import sort_scalars
from .journal_health import Level

_TITLES = {"process": "If the process dies", "machine": "If the machine loses power", "site": "If the site or its disk is gone"}
_MEANINGS = {
    "committed": "in the log: survives the process",
    "synced": "on disk: survives a power cut",
    "archived": "in the store",
    "persisted": "durable in the store: survives the site",
}
_CHECKPOINTS_MAX = 12
_SCALARS_MAX = 12


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss that one kind of accident would cause now: the accident in words, the steps, and the colour of the card."""

    title: str
    estimate: LostWork
    level: Level


def losses(lost_work: Sequence[LostWork]) -> list[Loss]:
    """Return a card for each accident."""
    return [Loss(_TITLES[one.scope], one, _level_of(one)) for one in lost_work]


def _level_of(estimate: LostWork) -> Level:
    if estimate.nothing_left:
        return "idle"
    return "attention" if estimate.is_at_least else "fine"


@dataclass(frozen=True, slots=True)
class ScalarLine:
    """One row of the table of scalars.

    Attributes:
        name: its name in the training script.
        value: the newest value.
        step: the step that it belongs to.
    """

    name: str
    value: str
    step: int


def scalar_lines(evaluation: Evaluation) -> list[ScalarLine]:
    """Return the newest value of each scalar that the training loop logs, losses first."""
    curves = {} if evaluation.progress is None else evaluation.progress.curves
    newest = {name: (steps[-1], values[-1]) for name, (steps, values) in curves.items()}
    return [ScalarLine(name, f"{newest[name][1]:.5g}", newest[name][0]) for name in sort_scalars(newest)[:_SCALARS_MAX]]


@dataclass(frozen=True, slots=True)
class WatermarkLine:
    """One row of the table of watermarks.

    Attributes:
        name: the watermark.
        step: the newest step that has reached it.
        steps_behind: distance to `committed`; None for `committed` itself.
        seconds_behind: the time that these steps took; None if unknown.
        meaning: what a step survives that has reached the watermark.
    """

    name: str
    step: int
    steps_behind: int | None
    seconds_behind: float | None
    meaning: str


def watermark_lines(evaluation: Evaluation, history: CommitHistory) -> list[WatermarkLine]:
    """Return the watermarks; those of the store only if there is a store."""
    marks = evaluation.rows.marks
    names = ["committed", "synced", *(["archived", "persisted"] if has_store(marks, evaluation.rows.store) else [])]
    meanings = _MEANINGS | ({"synced": "to memory only (tmpfs)"} if evaluation.in_memory else {})
    lines = []
    for name in names:
        step, is_first = getattr(marks, name), name == "committed"
        lines.append(
            WatermarkLine(
                name,
                step,
                None if is_first else marks.committed - step,
                None if is_first else estimate_seconds_since(history, step),
                meanings[name],
            )
        )
    return lines


def watermark_notes(evaluation: Evaluation) -> list[str]:
    """Return sentences about the store, and about a run that syncs only its checkpoints."""
    marks, store = evaluation.rows.marks, evaluation.rows.store
    notes = [] if store is None else [f"The store is {store.url}."]
    if store is not None and store.url.startswith("file:"):
        notes.append("It is a folder, and survives the loss of the site only if it is at another site.")
    if not has_store(marks, store):
        notes.append("There is no store: nothing is kept outside this machine.")
    if marks.committed and not marks.synced:
        notes.append('Only checkpoints of this run are synced (durability="process").')
    return notes


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes on disk.

    Attributes:
        log_bytes: size of all segments.
        checkpoint_bytes: size of all checkpoints.
    """

    log_bytes: int
    checkpoint_bytes: int


def space_of(evaluation: Evaluation) -> Space:
    """Return the bytes that a journal takes on disk."""
    return Space(sum(row.size for row in evaluation.rows.segments), sum(row.nbytes for row in evaluation.rows.checkpoints))


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """One row of the table of checkpoints.

    Attributes:
        step: step of the checkpoint.
        size: bytes on disk.
        taken_at: when it was taken, in seconds since 1970.
        note: "recovery starts here", or the reason why the checkpoint was pruned; "" for neither.
    """

    step: int
    size: int
    taken_at: float
    note: str


def checkpoint_lines(evaluation: Evaluation) -> list[CheckpointLine]:
    """Return the newest checkpoints, newest first."""
    newest = sorted(evaluation.rows.checkpoints, key=lambda row: (row.timeline, row.sequence), reverse=True)[:_CHECKPOINTS_MAX]
    lines = []
    for row in newest:
        is_anchor = evaluation.anchor is not None and row.name == evaluation.anchor.name
        note = "intact: recovery starts here" if is_anchor else evaluation.pruning.reasons.get(row.name, "")
        lines.append(CheckpointLine(row.step, row.nbytes, row.created_at, note))
    return lines
