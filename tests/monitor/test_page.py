"""The page in a real Chromium: what stands there is what the catalog has."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.monitor.test_watch import run, watching
from tests.support.browser import Browser, chromium
from tests.support.clock import FakeClock
from tests.support.toy import ToyTrainer
from tests.support.toy_steps import killed
from tranlogs.base.config import MIB
from tranlogs.base.quantities import format_bytes
from tranlogs.catalog import Incident, Watermarks
from tranlogs.retention.evaluations import read_evaluations, read_values
from tranlogs.retention.prune import Budget, bytes_on_disk
from tranlogs_monitor.dashboard.metrics import Metrics
from tranlogs_monitor.dashboard.pages.board import Board
from tranlogs_monitor.dashboard.server import WebServer
from tranlogs_monitor.settings import DaemonSettings
from tranlogs_monitor.watching.training_progress import TrainingProgress
from tranlogs_monitor.watching.watch import JournalWatch

__all__ = ["run"]

BUDGET = 100 * MIB


@pytest.fixture
def board() -> Board:
    return Board(DaemonSettings(Budget(BUDGET), interval_seconds=0.2))


@pytest.fixture
def port(board: Board) -> Iterator[int]:
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    yield server.port
    server.close()


@pytest.fixture(scope="session")
def _browser() -> Iterator[Browser]:
    program = chromium()
    if program is None:
        if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
            pytest.fail("TRANLOGS_REQUIRE_ALL=1, and this test needs Chromium")
        pytest.skip("needs Chromium")
    with Browser(program) as found:
        yield found


@pytest.fixture
def browser(_browser: Browser) -> Browser:
    """A browser with an empty page of a profile of its own."""
    _browser.begin_anew()
    return _browser


@pytest.fixture
def watched(run: ToyTrainer, board: Board) -> Iterator[JournalWatch]:
    """Twenty evaluations of a run."""
    clock = FakeClock(max(row.sealed_at for row in run.journal.catalog.segments()))
    watch = watching(run, clock, budget=Budget(BUDGET))
    for _ in range(20):
        board.note(watch.paths.folder, watch.evaluate())
        clock.advance(10)
    yield watch
    watch.close()


def asked(port: int, path: str, method: str = "GET") -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def text(browser: Browser, selector: str) -> str:
    return str(browser.value(f"document.querySelector({json.dumps(selector)}).textContent"))


def test_the_numbers_on_the_page_are_the_catalogs(run: ToyTrainer, watched: JournalWatch, browser: Browser, port: int) -> None:
    browser.open(f"http://127.0.0.1:{port}/")
    catalog = run.journal.catalog
    marks, segments, checkpoints = catalog.watermarks(), catalog.segments(), catalog.checkpoints()
    assert text(browser, "#headline") == f"All steps up to {marks.committed} are safe if the process dies."
    assert [int(text(browser, f"#step-{name}")) for name in ("committed", "synced")] == [marks.committed, marks.synced]
    assert int(text(browser, "#lag-synced")) == marks.committed - marks.synced
    used = bytes_on_disk(segments, checkpoints)
    assert text(browser, "#usage") == f"{format_bytes(used)} of 100.0 MiB ({100 * used / BUDGET:.0f}\u00a0%)"
    assert text(browser, "#log-words").startswith("6 sealed segments, 2 of them protected, and 3 checkpoints")
    assert browser.value("document.querySelectorAll('.cells .cell').length") == len(segments)
    assert browser.value("document.querySelectorAll('.cells .protected').length") == 2
    assert browser.value("document.querySelectorAll('.cells .diamond').length") == len(checkpoints)
    lost = [text(browser, f"#lost-{what}") for what in ("process", "machine", "site")]
    assert lost == ["no finished step", "11 steps", "everything: there is no store"]  # a checkpoint of step 20 is on disk
    rows = read_evaluations(run.journal.paths.folder)
    shown = {
        int(n): (value, standing)
        for n, value, standing in browser.value(
            "[...document.querySelectorAll('[data-segment]')].map((row) => [row.dataset.segment, row.cells[3].textContent, "
            "row.cells[4].textContent])"
        )
    }
    assert {n: value for n, (value, _) in shown.items()} == {n: f"{v:.3f}" for n, v in read_values(rows[-1]).as_dict().items()}
    assert sorted(standing for _, standing in shown.values()) == ["can be pruned"] * 4 + ["protected"] * 2
    drawn = browser.value("[...charts.keys()].map((name) => [name, charts.get(name).data])")
    assert {name: len(data[0]) for name, data in drawn} == {"steps": 20, "bytes": 20, "values": 20}
    assert dict(drawn)["steps"][-1] == [row.committed for row in rows]
    assert browser.complaints == []


def test_scalars_are_drawn_over_steps_with_losses_first(
    run: ToyTrainer, board: Board, watched: JournalWatch, browser: Browser, port: int
) -> None:
    curves = {"accuracy": ((2, 4), (0.5, 0.75)), "loss": ((1, 2, 4), (3.0, 2.0, 1.0))}
    progress = TrainingProgress(4, 40, 1, curves)
    board.note(watched.paths.folder, replace(watched.evaluate(), progress=progress))
    browser.open(f"http://127.0.0.1:{port}/")
    assert text(browser, "#training-position") == "Step 4, batch 40, epoch 2."
    drawn = browser.value("charts.get('scalars').data")
    assert drawn == [[1, 2, 4], [3, 2, 1], [None, 0.5, 0.75]]
    lines = browser.value("charts.get('scalars').series.map((one) => [one.label, one.show])")
    assert lines == [["step", True], ["loss", True], ["accuracy", False]]
    assert browser.complaints == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [380, 1100])
def test_the_page_fits_and_asks_nobody_else(
    watched: JournalWatch, browser: Browser, port: int, width: int, is_dark: bool
) -> None:
    browser.look(width=width, is_dark=is_dark)
    browser.open(f"http://127.0.0.1:{port}/")
    browser.value("document.querySelector('details').open = true")
    assert browser.value("document.documentElement.scrollWidth") == browser.value("innerWidth") == width
    spills = "[...document.querySelectorAll('main *')].filter((one) => one.getBoundingClientRect().right > innerWidth).length"
    assert browser.value(spills) == 0
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    page, ink = (sum(int(part) for part in one[4:-1].split(",")) for one in browser.value(colours))
    assert (page < ink) is is_dark
    assert browser.picture().startswith(b"\x89PNG")
    assert len(browser.requests) >= 5
    assert {address.split("/")[2] for address in browser.requests} == {f"127.0.0.1:{port}"}
    assert browser.complaints == []


def test_large_numbers_and_long_names_fit_a_phone(
    watched: JournalWatch, board: Board, browser: Browser, port: int, tmp_path: Path
) -> None:
    shown = board.journal("")
    assert shown is not None
    assert shown.evaluation is not None
    rows, far = shown.evaluation.rows, 1_234_567_890
    segments = [
        replace(row, base_step=far + row.base_step, last_step=far + row.last_step, size=row.size << 24) for row in rows.segments
    ]
    board.forget(watched.paths.folder)
    marks = Watermarks(far + 31, far, 5, 3)
    board.note(tmp_path / ("long-" * 20), replace(shown.evaluation, rows=replace(rows, segments=segments, marks=marks)))
    browser.look(width=380)
    browser.open(f"http://127.0.0.1:{port}/")
    browser.value("document.querySelector('details').open = true")
    assert text(browser, "#step-synced") == f"{far:,}"
    assert browser.value("document.documentElement.scrollWidth") == 380
    spills = "[...document.querySelectorAll('section')].filter((one) => one.scrollWidth > one.clientWidth).length"
    assert browser.value(spills) == 0


def test_text_is_readable_in_light_and_dark(watched: JournalWatch, browser: Browser, port: int) -> None:
    """Contrast of 4.5 and more (WCAG AA) for what stands on panel, card and page."""
    contrast = """(() => {
        const light = (name) => {
            const hex = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
            const part = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
                .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
            return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2] + 0.05;
        };
        const of = (a, b) => Math.max(light(a), light(b)) / Math.min(light(a), light(b));
        return ["text", "quiet", "link"].flatMap((ink) => ["panel", "page"].map((ground) => of(ink, ground)));
    })()"""
    for is_dark in (False, True):
        browser.look(is_dark=is_dark)
        browser.open(f"http://127.0.0.1:{port}/")
        assert min(browser.value(contrast)) >= 4.5


def test_the_page_follows_the_run_without_being_loaded_anew(
    run: ToyTrainer, watched: JournalWatch, board: Board, browser: Browser, port: int
) -> None:
    browser.open(f"http://127.0.0.1:{port}/")
    browser.value("window.isTheSame = true; document.querySelector('details').open = true")
    catalog = run.journal.catalog
    with catalog.transaction() as tables:
        tables.put("incident/000001", Incident(1, "No space left on <device>", 31, 0.0))
    board.note(watched.paths.folder, watched.evaluate())
    browser.wait_for("document.querySelector('#headline').textContent.startsWith('Logging has been suspended since step 31')")
    assert "No space left on <device>" in text(browser, "#headline"), "text stays text"
    assert text(browser, "#lost-process") == "all steps after 31"
    browser.wait_for("charts.get('steps').data[0].length === 21")
    board.note(watched.paths.folder, "the catalog is missing")
    browser.wait_for("document.querySelector('#headline').textContent.startsWith('The journal cannot be read now')")
    assert browser.value("window.isTheSame && document.querySelector('details').open") is True
    assert browser.complaints == []


def test_a_monitor_that_is_gone_is_said(watched: JournalWatch, board: Board, browser: Browser) -> None:
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    browser.open(f"http://127.0.0.1:{server.port}/")
    assert browser.value("document.querySelector('#silent').hidden") is True
    server.close()
    browser.wait_for("document.querySelector('#silent').hidden === false")


def test_several_journals_have_a_row_each_and_problems_come_first(
    run: ToyTrainer, watched: JournalWatch, board: Board, browser: Browser, port: int, tmp_path: Path
) -> None:
    copy = watching(killed(run, tmp_path / "a & b <c>") / "rank0", FakeClock(1e9))
    board.note(copy.paths.folder, copy.evaluate())
    copy.close()
    board.note(tmp_path / "z-broken" / "rank0", "the catalog is missing")
    browser.open(f"http://127.0.0.1:{port}/")
    assert text(browser, ".hero h2") == "2 of 3 journals need attention."
    names = browser.value("[...document.querySelectorAll('.row strong')].map((one) => one.textContent)")
    assert names == [str(tmp_path / name / "rank0") for name in ("z-broken", "a & b <c>", "run")]
    browser.value("document.querySelectorAll('.row')[1].click()")
    browser.wait_for("document.readyState === 'complete' && document.querySelector('#headline') !== null && charts.size === 0")
    assert text(browser, "#headline").endswith("died without closing the run; the next one will continue after step 31.")
    assert text(browser, "h1") == names[1]
    assert browser.complaints == []


def test_answers_are_read_only_and_tell_browsers_to_ask_nobody_else(watched: JournalWatch, board: Board, port: int) -> None:
    name = quote(str(watched.paths.folder), safe="")
    for path in ("/", f"/journal/{name}", f"/data.json?journal={name}", "/static/page.js", "/static/uplot.css", "/metrics"):
        answer, body = asked(port, path)
        assert (answer.status, bool(body)) == (200, True)
        assert (answer.headers["Content-Security-Policy"] or "").startswith("default-src 'self';")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert asked(port, path, "HEAD")[1] == ""
        assert asked(port, path, "POST")[0].status == 405
    data = json.loads(asked(port, "/data.json")[1])
    assert data["journal"] == str(watched.paths.folder)
    assert set(data["steps"]) == {"committed", "synced"}, "there is no store"
    for path in (
        "/journal/elsewhere",
        "/data.json?journal=elsewhere",
        "/static/../web.py",
        "/static/py.typed",
        "/static/%2e%2e/web.py",
    ):
        assert asked(port, path)[0].status == 404
    board.forget(watched.paths.folder)
    assert "No journal is watched yet" in asked(port, "/")[1]
