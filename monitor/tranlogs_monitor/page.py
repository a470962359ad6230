"""The page: all journals in a row each, or one of them in full. Rendered here; the charts are drawn by static/page.js.

What stands in an element with `data-live` is fetched anew by the browser at each interval, the rest stays.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import quote

from tranlogs import __version__
from tranlogs.quantities import bytes_in_words, count, seconds_in_words
from tranlogs.retention.budget import bytes_on_disk
from tranlogs.retention.exposure import Exposure, History, has_store, seconds_between

from .board import Shown
from .cells import cells, legend, segment_table
from .markup import Child, Markup, el
from .state import LEVELS, State, exposures_of, history_of, state_of
from .watch import Seen

_DIES = {"process": "If the process dies", "machine": "If the machine loses power", "site": "If the site or its disk is gone"}
_MEANING = {
    "committed": "in the log: survives the process", "synced": "on disk: survives a power cut",
    "archived": "in the store", "persisted": "durable in the store: survives the site",
}  # fmt: skip
_CHECKPOINTS_MAX = 12
_CHART_SCRIPTS = ("/static/uplot.js", "/static/page.js")


def overview(journals: Sequence[Shown], *, now: float, interval_seconds: float) -> bytes:
    """All journals, those with problems first."""
    found = sorted(((state_of(shown), shown) for shown in journals), key=lambda pair: LEVELS.index(pair[0].level))
    rows: Child = [_row(shown, state, now) for state, shown in found] or \
        el("p", "Nothing is watched yet: there is no run where the monitor looks.", class_="empty")  # fmt: skip
    worst = found[0][0].level if found else "idle"
    ill = sum(state.level in ("problem", "attention") for state, _ in found)
    words = f"{count(len(found), 'journal')}, all well."
    if ill:
        words = f"{ill:,} of {count(len(found), 'journal')} {'wants' if ill == 1 else 'want'} looking after."
    head = el("section", _dot(worst), el("h2", words), class_=f"hero {worst}")
    body = el("div", head if found else None, el("div", rows, class_="rows"), data_live="all")
    return _document("all journals", body, now=now, interval_seconds=interval_seconds, title="All journals")


def journal_page(shown: Shown, *, now: float, interval_seconds: float, has_others: bool) -> bytes:
    """One journal in full."""
    state, seen = state_of(shown), shown.seen
    parts: list[Child] = [_hero(state, seen, now)]
    if seen is not None:
        history = history_of(shown, seen)
        parts += [
            _exposures(exposures_of(seen, history)), _watermarks(seen, history), _bytes(seen), _log(seen),
            _section("What segments are worth",
                     "A segment is worth 1 when it is sealed. It loses value as it ages, and at once when a checkpoint "
                     "(dashed) covers it. When space is short the least valuable unprotected ones go first.", _chart("values")),
            _checkpoints(seen, now),
        ]  # fmt: skip
    return _document(shown.name, *parts, now=now, interval_seconds=interval_seconds, title=shown.name, journal=shown.name,
                     back=has_others)  # fmt: skip


def address_of_page(name: str) -> str:
    """Where a journal's page is."""
    return "/journal/" + quote(name, safe="")


def _document(name: str, *body: Child, now: float, interval_seconds: float, title: str, journal: str | None = None,
              back: bool = False) -> bytes:  # fmt: skip
    scripts = _CHART_SCRIPTS if journal is not None else _CHART_SCRIPTS[1:]
    head = el(
        "head", el("meta", charset="utf-8"), el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"), el("title", f"{name} - TranLogs"),
        el("link", rel="icon", type="image/svg+xml", href="/static/icon.svg"),
        el("link", rel="stylesheet", href="/static/uplot.css"), el("link", rel="stylesheet", href="/static/page.css"),
        [el("script", src=source, defer=True) for source in scripts],
    )  # fmt: skip
    top = el(
        "header",
        el("a", "TranLogs", href="/", class_="brand"),
        el("h1", title),
        el("a", "all journals", href="/") if back else None,
    )
    lost = el("p", "The monitor does not answer. What you see is old.", id="silent", role="alert", hidden=True)
    foot = el("footer", el("span", f"TranLogs {__version__}"), el("a", "metrics", href="/metrics"),
              el("a", "numbers as JSON", href=f"/data.json?journal={quote(journal, safe='')}") if journal is not None else None,
              el("span", f"as of {_clock(now)}", data_live="clock"))  # fmt: skip
    page = el("html", head, el("body", top, lost, el("main", *body), foot, data_interval=str(interval_seconds),
                               data_journal=journal), lang="en")  # fmt: skip
    return b"<!doctype html>\n" + page.encode()


# The overview.


def _row(shown: Shown, state: State, now: float) -> Markup:
    seen = shown.seen
    facts: Child = None
    if seen is not None:
        used, marks = bytes_on_disk(seen.rows.segments, seen.rows.checkpoints), seen.rows.marks
        words = (f"committed {marks.committed:,}", f"synced {marks.synced:,}", _usage_in_words(used, seen.budget_bytes),
                 f"seen {_ago(now - seen.at)}")  # fmt: skip
        facts = [el("p", [el("span", one) for one in words], class_="facts"), _meter(used, seen.budget_bytes)]
    return el("a", _dot(state.level), el("div", el("strong", shown.name), el("p", state.headline), facts),
              href=address_of_page(shown.name), class_="row")  # fmt: skip


# One journal.


def _hero(state: State, seen: Seen | None, now: float) -> Markup:
    who: Child = None
    if seen is not None:
        owner = seen.owner
        trains = "Nobody has trained it yet" if owner is None else f"Process {owner.pid} on {owner.host} " + (
            f"trains since {_moment(owner.since, now)}" if owner.is_alive else "was the last to train")  # fmt: skip
        who = el("p", f"{trains}. The monitor looked {_ago(now - seen.at)}.", class_="quiet")
    more = el("ul", [el("li", what) for what in state.more]) if state.more else None
    return el("section", _dot(state.level), el("div", el("h2", state.headline, id="headline"), more, who),
              class_=f"hero {state.level}", data_live="hero")  # fmt: skip


def _exposures(found: Sequence[Exposure]) -> Markup:
    cards = [
        el("div", el("h3", _DIES[one.scope]), el("p", one.in_words(), class_="big", id=f"lost-{one.scope}"),
           el("p", f"training goes on after step {one.safe_step:,}" if not one.nothing_left else "nothing would be left",
              class_="quiet"),
           class_=f"card {_level_of(one)}")
        for one in found
    ]  # fmt: skip
    return _section("What would be lost now", None, el("div", cards, class_="cards", data_live="lost"))


def _level_of(one: Exposure) -> str:
    if one.nothing_left:
        return "idle"
    return "attention" if one.is_at_least else "fine"


def _watermarks(seen: Seen, history: History) -> Markup:
    marks = seen.rows.marks
    names = ["committed", "synced", *(["archived", "persisted"] if has_store(marks, seen.rows.store) else [])]
    rows, meaning = [], _MEANING | ({"synced": "to memory only (tmpfs)"} if seen.in_memory else {})
    for name in names:
        step = getattr(marks, name)
        seconds = seconds_between(history, step)
        lag = "-" if name == "committed" else f"{marks.committed - step:,}"
        behind = "-" if name == "committed" or seconds is None else seconds_in_words(seconds)
        rows.append(el("tr", el("th", el("i", class_=f"key {name}"), name, scope="row"),
                       el("td", f"{step:,}", id=f"step-{name}"), el("td", lag, id=f"lag-{name}"), el("td", behind),
                       el("td", meaning[name], class_="wide quiet")))  # fmt: skip
    table = _table(("watermark", "step", "steps behind", "time behind", ""), rows, key="marks")
    store = seen.rows.store
    notes = [] if store is None else [f"The store is {store.url}."]
    if store is not None and store.url.startswith("file:"):
        notes.append("It is a folder, and survives the site if it lies on another one.")
    if not has_store(marks, store):
        notes.append("No store: nothing is kept away from this machine.")
    if marks.committed and not marks.synced:
        notes.append('Of this run only checkpoints are synced (durability="process").')
    words = el("p", " ".join(notes), class_="quiet") if notes else None
    return _section("How far the log is", "The newest step that has reached each place.", table, words, _chart("steps"))


def _bytes(seen: Seen) -> Markup:
    rows, budget = seen.rows, seen.budget_bytes
    log, checkpoints = sum(row.size for row in rows.segments), sum(row.nbytes for row in rows.checkpoints)
    pruned = rows.pruned
    gone = "Nothing has been given up yet."
    if pruned.nbytes:
        gone = (f"Given up so far: {bytes_in_words(pruned.nbytes)} in {count(pruned.segments, 'segment')} and "
                f"{count(pruned.checkpoints, 'checkpoint')}.")  # fmt: skip
    words = f"log {bytes_in_words(log)}, checkpoints {bytes_in_words(checkpoints)}. {gone}"
    facts = el("div", el("p", _usage_in_words(log + checkpoints, budget), class_="big", id="usage"),
               _meter(log + checkpoints, budget), el("p", words, class_="quiet"), data_live="bytes")  # fmt: skip
    return _section("Space against the budget", None, facts, _chart("bytes"))


def _log(seen: Seen) -> Markup:
    states = [row.state for row in seen.rows.segments]
    protected = sum(seen.protected.values())
    words = (f"{count(states.count('sealed'), 'sealed segment')}, {protected:,} of them protected, and "
             f"{count(len(seen.rows.checkpoints), 'checkpoint')}; oldest first.")  # fmt: skip
    body = el("div", el("p", words, id="log-words"), cells(seen), legend(), segment_table(seen), data_live="log")
    return _section("The log, piece by piece",
                    "A square is a segment of the log, a diamond a checkpoint. Protected is what recovery to the newest step "
                    "needs: it never goes.", body)  # fmt: skip


def _checkpoints(seen: Seen, now: float) -> Markup:
    newest = sorted(seen.rows.checkpoints, key=lambda row: (row.timeline, row.sequence), reverse=True)[:_CHECKPOINTS_MAX]
    rows = []
    for row in newest:
        is_anchor = seen.anchor is not None and row.name == seen.anchor.name
        note = "sound: recovery begins here" if is_anchor else seen.pruning.reasons.get(row.name, "")
        rows.append(el("tr", el("th", f"{row.step:,}", scope="row"), el("td", bytes_in_words(row.nbytes)),
                       el("td", _moment(row.created_at, now)), el("td", note, class_="quiet")))  # fmt: skip
    body = _table(("step", "size", "taken", ""), rows, key="checkpoints")
    many = len(seen.rows.checkpoints)
    return _section("Checkpoints", f"The newest {_CHECKPOINTS_MAX} of {many:,}." if many > len(newest) else None, body)


# Pieces.


def _section(title: str, about: str | None, *body: Child) -> Markup:
    return el("section", el("h2", title), el("p", about, class_="quiet") if about else None, *body, class_="panel")


def _table(columns: Sequence[str], rows: Sequence[Markup], *, key: str) -> Markup:
    head = el("tr", [el("th", name, scope="col", class_=None if name else "wide") for name in columns])
    return el("div", el("table", el("thead", head), el("tbody", rows)), class_="scrolls", data_live=key)


def _chart(name: str) -> Markup:
    return el("div", class_="chart", id=f"chart-{name}")


def _dot(level: str) -> Markup:
    return el("i", class_=f"dot {level}", title=level)


def _meter(used: int, budget: int | None) -> Markup | None:
    if budget is None:
        return None
    share = min(100.0 * used / budget, 100.0)
    level = "attention" if used > budget else "fine"
    bar = el("rect", class_=f"bar {level}", width=f"{share:.1f}", height=1)
    return el("svg", el("rect", class_="rail", width=100, height=1), bar, class_="meter", viewBox="0 0 100 1",
              preserveAspectRatio="none", role="img", aria_label=f"{share:.0f} % of the budget")  # fmt: skip


def _usage_in_words(used: int, budget: int | None) -> str:
    if budget is None:
        return f"{bytes_in_words(used)}, no budget"
    return f"{bytes_in_words(used)} of {bytes_in_words(budget)} ({100 * used / budget:.0f}\u00a0%)"


def _ago(seconds: float) -> str:
    return "just now" if seconds < 1 else f"{seconds_in_words(seconds)} ago"


def _moment(at: float, now: float) -> str:
    then, today = time.localtime(at), time.localtime(now)
    is_today = then[:3] == today[:3]
    return time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M", then)


def _clock(now: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
