"""The pages: all journals in a row each, or one of them in full. The browser draws the charts (static/page.js)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from tranlogs import __version__
from tranlogs.retention.budget import bytes_on_disk

from ...watching.state import LEVELS, State, exposures_of, history_of, state_of
from ...watching.watch import Seen
from .board import Shown
from .cells import log_of
from .rendering import render
from .sections import checkpoint_lines, losses, space_of, watermark_lines, watermark_notes


@dataclass(frozen=True, slots=True)
class Row:
    """A journal in the list of all journals.

    Attributes:
        name: its folder.
        address: the path of its own page.
        state: how it is.
        seen: its last evaluation; None if there is none.
        used_bytes: what it takes on disk.
    """

    name: str
    address: str
    state: State
    seen: Seen | None
    used_bytes: int


def overview(journals: Sequence[Shown], *, now: float, interval_seconds: float) -> bytes:
    """Return the page of all journals, those with problems first."""
    rows = sorted(map(_row, journals), key=lambda row: LEVELS.index(row.state.level))
    unwell = sum(row.state.level in ("problem", "attention") for row in rows)
    return render("overview.html", now=now, interval_seconds=interval_seconds, version=__version__, rows=rows, unwell=unwell)


def journal_page(shown: Shown, *, now: float, interval_seconds: float, has_others: bool) -> bytes:
    """Return the page of one journal.

    Args:
        shown: the journal.
        now: seconds since 1970.
        interval_seconds: time between two evaluations, after which the browser fetches the page again.
        has_others: whether the page has a link to the list of all journals.
    """
    return render(
        "journal.html",
        now=now,
        interval_seconds=interval_seconds,
        version=__version__,
        journal=shown.name,
        has_others=has_others,
        numbers_address=f"/data.json?journal={quote(shown.name, safe='')}",
        state=state_of(shown),
        seen=shown.seen,
        **({} if shown.seen is None else _facts(shown, shown.seen)),
    )


def address_of_page(name: str) -> str:
    """Return the path of a journal's page."""
    return "/journal/" + quote(name, safe="")


def _row(shown: Shown) -> Row:
    seen = shown.seen
    used = 0 if seen is None else bytes_on_disk(seen.rows.segments, seen.rows.checkpoints)
    return Row(shown.name, address_of_page(shown.name), state_of(shown), seen, used)


def _facts(shown: Shown, seen: Seen) -> dict[str, object]:
    history = history_of(shown, seen)
    return {
        "losses": losses(exposures_of(seen, history)),
        "watermarks": watermark_lines(seen, history),
        "watermark_notes": watermark_notes(seen),
        "space": space_of(seen),
        "log": log_of(seen),
        "checkpoints": checkpoint_lines(seen),
    }
