"""The pages: all journals with one row each, or one journal in full. The browser draws the charts (static/page.js)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from tranlogs import __version__
from tranlogs.retention.pruning_plan import bytes_on_disk

from ...watching.watch import Evaluation
from .board import JournalView
from .cells import describe_log
from .journal_health import LEVELS, JournalHealth, commit_history, current_lost_work, describe_health
from .rendering import render
from .sections import ScalarLine, checkpoint_lines, losses, scalar_lines, space_of, watermark_lines, watermark_notes

_SCALARS_OF_ROW_MAX = 2


@dataclass(frozen=True, slots=True)
class Row:
    """A journal in the list of all journals.

    Attributes:
        name: the journal's folder.
        address: path of the journal's page.
        state: the journal's state in words.
        evaluation: the journal's last evaluation; None if there is none.
        used_bytes: bytes on disk.
        scalars: the newest losses.
    """

    name: str
    address: str
    state: JournalHealth
    evaluation: Evaluation | None
    used_bytes: int
    scalars: Sequence[ScalarLine] = ()


def overview(journals: Sequence[JournalView], *, now: float, interval_seconds: float) -> bytes:
    """Return the page of all journals, those with problems first."""
    rows = sorted(map(_row, journals), key=lambda row: LEVELS.index(row.state.level))
    unwell = sum(row.state.level in ("problem", "attention") for row in rows)
    return render("overview.html", now=now, interval_seconds=interval_seconds, version=__version__, rows=rows, unwell=unwell)


def journal_page(view: JournalView, *, now: float, interval_seconds: float, has_others: bool) -> bytes:
    """Return the page of one journal.

    Args:
        view: the journal.
        now: seconds since 1970.
        interval_seconds: time between two evaluations, after which the browser fetches the page again.
        has_others: True if the page links to the list of all journals.
    """
    return render(
        "journal.html",
        now=now,
        interval_seconds=interval_seconds,
        version=__version__,
        journal=view.name,
        has_others=has_others,
        numbers_address=f"/data.json?journal={quote(view.name, safe='')}",
        state=describe_health(view),
        evaluation=view.evaluation,
        **({} if view.evaluation is None else _facts(view, view.evaluation)),
    )


def address_of_page(name: str) -> str:
    """Return the path of a journal's page."""
    return "/journal/" + quote(name, safe="")


def _row(view: JournalView) -> Row:
    evaluation = view.evaluation
    used = 0 if evaluation is None else bytes_on_disk(evaluation.rows.segments, evaluation.rows.checkpoints)
    scalars = [] if evaluation is None else scalar_lines(evaluation)[:_SCALARS_OF_ROW_MAX]
    return Row(view.name, address_of_page(view.name), describe_health(view), evaluation, used, scalars)


def _facts(view: JournalView, evaluation: Evaluation) -> dict[str, object]:
    history = commit_history(view, evaluation)
    return {
        "progress": evaluation.progress,
        "scalars": scalar_lines(evaluation),
        "losses": losses(current_lost_work(evaluation, history)),
        "watermarks": watermark_lines(evaluation, history),
        "watermark_notes": watermark_notes(evaluation),
        "space": space_of(evaluation),
        "log": describe_log(evaluation),
        "checkpoints": checkpoint_lines(evaluation),
    }
