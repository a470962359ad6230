"""The templates: whatever a run is named, text stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from jinja2 import UndefinedError

from tests.monitor.test_state import seen_at
from tests.monitor.test_watch import run
from tests.support.toy import ToyTrainer
from tranlogs.catalog import Incident, StoreRow
from tranlogs_monitor.dashboard.pages.board import JournalView
from tranlogs_monitor.dashboard.pages.page import journal_page, overview, render

__all__ = ["run"]

NAME = 'runs/<script>alert(1)</script>\'" onload="x/{{ 7 * 7 }}/&amp;'
TEMPLATES = files("tranlogs_monitor.dashboard.pages") / "templates"


class Elements(HTMLParser):
    """Collects tags, attributes and text of a page.

    Attributes:
        tags: names of all elements.
        attributes: names and values.
        text: what stands between the tags.
    """

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_runs_name_is_text_on_both_pages(run: ToyTrainer) -> None:
    seen = seen_at(run)
    plain = Elements(journal_page(JournalView("run", seen), now=seen.at, interval_seconds=10, has_others=True))
    page = Elements(journal_page(JournalView(NAME, seen), now=seen.at, interval_seconds=10, has_others=True))
    assert page.tags == plain.tags, "the name has made an element"
    assert page.text.count(NAME) == 2, "in the title and the heading"
    assert ("data-journal", NAME) in page.attributes
    journals = [JournalView(NAME, seen), JournalView(NAME, None, problem=NAME)]
    rows = Elements(overview(journals, now=seen.at, interval_seconds=10))
    assert rows.tags.count("script") == 1
    assert rows.text.count(NAME) == 3
    assert not [name for name, _ in page.attributes + rows.attributes if name.startswith("on")]


def test_what_a_catalog_says_is_text(run: ToyTrainer) -> None:
    seen = seen_at(run)
    store = StoreRow(f"file:///{NAME}", "me", problem=NAME)
    owner = replace(seen.owner, host=NAME) if seen.owner is not None else None
    reasons = dict.fromkeys((row.name for row in seen.rows.checkpoints), NAME)
    rows = replace(seen.rows, store=store, incidents=[Incident(1, NAME, 31, 0.0)])
    told = replace(seen, rows=rows, owner=owner, anchor=None, pruning=replace(seen.pruning, reasons=reasons))
    page = Elements(journal_page(JournalView("run", told), now=seen.at, interval_seconds=10, has_others=False))
    assert page.tags.count("script") == 2
    assert page.text.count(NAME) >= 5
    assert any(name == "title" and NAME in (value or "") for name, value in page.attributes)


def test_no_template_turns_escaping_off_or_has_a_script_or_a_style_inline() -> None:
    names = [one.name for one in TEMPLATES.iterdir()]
    assert {"document.html", "journal.html", "overview.html"} <= set(names)
    for name in names:
        text = (TEMPLATES / name).read_text()
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", text), name
        assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|<script(?! src=\"/static/)", text), name


def test_a_value_that_a_template_lacks_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("overview.html", rows=[])
