"""The pages: all journals with one row each, or one journal in full. The browser draws the charts (static/page.js)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from tranlogs import __version__
from tranlogs.base import quantities
from tranlogs.base.quantities import format_seconds
from tranlogs.retention.advice import COLUMNS, list_choices
from tranlogs.retention.prune import bytes_on_disk

from ...watching.watch import Evaluation
from .board import JournalView
from .cells import describe_log
from .journal_health import LEVELS, JournalHealth, commit_history, current_lost_work, describe_health
from .sections import ScalarLine, checkpoint_lines, losses, scalar_lines, space_of, watermark_lines, watermark_notes

_SCALARS_OF_ROW_MAX = 2
_SPACIOUS_ROWS_MAX = 12  # A longer list has one line for each journal that needs no attention.

# What the list of all journals counts and can be narrowed to, by the level of a journal.
STANDINGS = {"problem": "trouble", "attention": "trouble", "fine": "training", "idle": "closed"}

_ENVIRONMENT = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)


def render(template: str, **facts: Any) -> bytes:
    """Fill a template, which is a file in templates/. A value that the template refers to and that is missing is an error."""
    return _ENVIRONMENT.get_template(template).render(facts).encode()


def _decimals(value: float, places: int) -> str:
    return f"{value:.{places}f}"


def _group_digits(number: int) -> str:
    return f"{number:,}"


def ago(at: float, now: float) -> str:
    """Return how long ago a moment was, like "3.0 s ago"."""
    return "just now" if now - at < 1 else f"{format_seconds(now - at)} ago"


def moment(at: float, now: float) -> str:
    """Return a moment in local time: the time if the moment is today, else the date and the time."""
    then, today = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def clock(at: float) -> str:
    """Return the date, the time and the time zone of a moment."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))


_ENVIRONMENT.filters |= {
    "ago": ago,
    "clock": clock,
    "count": quantities.count,
    "decimals": _decimals,
    "grouped": _group_digits,
    "moment": moment,
    "seconds": quantities.format_seconds,
    "size": quantities.format_bytes,
}


@dataclass(frozen=True, slots=True)
class Row:
    """A journal in the list of all journals, with the path of its page, its bytes on disk and its newest losses."""

    name: str
    address: str
    state: JournalHealth
    evaluation: Evaluation | None
    used_bytes: int
    scalars: Sequence[ScalarLine] = ()

    @property
    def standing(self) -> str:
        """One of "training", "closed" and "trouble"."""
        return STANDINGS[self.state.level]


def overview(
    journals: Sequence[JournalView], *, now: float, interval_seconds: float, words: str = "", standing: str = ""
) -> bytes:
    """Return the page of all journals, those with problems first.

    Args:
        journals: all journals.
        now: seconds since 1970.
        interval_seconds: time between two evaluations.
        words: only journals are listed whose names contain each of these words.
        standing: only journals of this standing are listed; "" for all.
    """
    rows = sorted(map(_row, journals), key=lambda row: LEVELS.index(row.state.level))
    counts = {one: sum(row.standing == one for row in rows) for one in ("training", "closed", "trouble")}
    wanted = words.lower().split()
    return render(
        "overview.html",
        now=now,
        interval_seconds=interval_seconds,
        version=__version__,
        rows=[row for row in rows if standing in ("", row.standing) and all(word in row.name.lower() for word in wanted)],
        counts=counts,
        total=len(rows),
        worst=rows[0].state.level if rows else "idle",
        is_dense=len(rows) > _SPACIOUS_ROWS_MAX,
        words=words,
        standing=standing,
    )


def journal_page(view: JournalView, *, now: float, interval_seconds: float, has_others: bool) -> bytes:
    """Return the page of one journal. The browser fetches it again after the time between two evaluations.

    `now` is in seconds since 1970. `has_others` is True if the page links to the list of all journals.
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
    history, advice = commit_history(view, evaluation), evaluation.advise()
    return {
        "progress": evaluation.progress,
        "scalars": scalar_lines(evaluation),
        "advice": advice,
        "choices": [] if advice is None else list_choices(advice),
        "choice_columns": COLUMNS,
        "losses": losses(current_lost_work(evaluation, history)),
        "watermarks": watermark_lines(evaluation, history),
        "watermark_notes": watermark_notes(evaluation),
        "space": space_of(evaluation),
        "log": describe_log(evaluation),
        "checkpoints": checkpoint_lines(evaluation),
    }
