"""The page in a real Chromium, and `tranlogs monitor --http` as a process: what stands there is what the catalog has."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.monitor.monitors import watching
from tests.monitor.test_dashboard import ask
from tests.support.browser import Browser
from tests.support.clock import FakeClock
from tests.support.launcher import environment
from tests.support.toy import ToyTrainer
from tranlogs.base.config import MIB
from tranlogs.base.quantities import format_bytes
from tranlogs.catalog import Incident
from tranlogs.retention.prune import Budget, bytes_on_disk
from tranlogs.retention.value_decay import read_evaluations, read_values
from tranlogs_monitor.dashboard.access import TOKEN_NAME
from tranlogs_monitor.dashboard.metrics import Metrics
from tranlogs_monitor.dashboard.pages.board import Board
from tranlogs_monitor.dashboard.server import WebServer
from tranlogs_monitor.settings import DaemonSettings
from tranlogs_monitor.watching.training_progress import TrainingProgress
from tranlogs_monitor.watching.watch import JournalWatch

BUDGET = 100 * MIB
TOKEN = "correct-horse"


@pytest.fixture
def board() -> Board:
    return Board(DaemonSettings(Budget(BUDGET), interval_seconds=0.2))


@pytest.fixture
def server(board: Board) -> Iterator[WebServer]:
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    yield server
    server.close()


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


def text(browser: Browser, selector: str) -> str:
    return str(browser.value(f"document.querySelector({json.dumps(selector)}).textContent"))


def assert_the_page_is_the_catalogs(run: ToyTrainer, browser: Browser) -> None:
    catalog = run.journal.catalog
    marks, segments, checkpoints = catalog.watermarks(), catalog.segments(), catalog.checkpoints()
    assert text(browser, "#headline") == f"All steps up to {marks.committed} are safe if the process dies."
    assert [int(text(browser, f"#step-{name}")) for name in ("committed", "synced")] == [marks.committed, marks.synced]
    assert int(text(browser, "#lag-synced")) == marks.committed - marks.synced
    used = bytes_on_disk(segments, checkpoints)
    assert text(browser, "#usage") == f"{format_bytes(used)} of 100.0 MiB ({100 * used / BUDGET:.0f}\u00a0%)"
    assert text(browser, "#log-words").startswith("6 sealed segments, 2 of them protected, and 3 checkpoints")
    cells = {"cell": len(segments), "protected": 2, "diamond": len(checkpoints)}
    assert {one: browser.value(f"document.querySelectorAll('.cells .{one}').length") for one in cells} == cells
    lost = [text(browser, f"#lost-{what}") for what in ("process", "machine", "site")]
    assert lost == ["no finished step", "11 steps", "everything: there is no store"]  # a checkpoint of step 20 is on disk
    rows = read_evaluations(run.journal.paths.folder)
    shown = browser.value(
        "[...document.querySelectorAll('[data-segment]')].map((row) => [row.dataset.segment, row.cells[3].textContent, "
        "row.cells[4].textContent])"
    )
    worth = {n: f"{value:.3f}" for n, value in read_values(rows[-1]).as_dict().items()}
    assert {int(n): value for n, value, _ in shown} == worth
    assert sorted(standing for *_, standing in shown) == ["can be pruned"] * 4 + ["protected"] * 2
    drawn = dict(browser.value("[...charts.keys()].map((name) => [name, charts.get(name).data])"))
    assert {name: len(data[0]) for name, data in drawn.items()} == {"steps": 20, "bytes": 20, "values": 20}
    assert drawn["steps"][-1] == [row.committed for row in rows]


def test_the_page_is_the_catalogs_asks_nobody_else_and_follows_the_run(
    run: ToyTrainer, watched: JournalWatch, board: Board, server: WebServer, browser: Browser
) -> None:
    address = f"http://127.0.0.1:{server.port}/"
    browser.open(address)
    browser.wait_for("charts.size === 3 && Number(document.body.dataset.looks) >= 2")
    assert_the_page_is_the_catalogs(run, browser)
    browser.value("window.isTheSame = true; document.querySelector('details').open = true")
    with run.journal.catalog.transaction() as tables:
        tables.put("incident/000001", Incident(1, "No space left on <device>", 31, 0.0))
    board.note(watched.paths.folder, watched.evaluate())
    browser.wait_for("document.querySelector('#headline').textContent.startsWith('Logging has been suspended since step 31')")
    assert "No space left on <device>" in text(browser, "#headline"), "text stays text"
    assert text(browser, "#lost-process") == "all steps after 31"
    browser.wait_for("charts.get('steps').data[0].length === 21")
    board.note(watched.paths.folder, "the catalog is missing")
    browser.wait_for("document.querySelector('#headline').textContent.startsWith('The journal cannot be read now')")
    assert browser.value("window.isTheSame && document.querySelector('details').open") is True, "it is not loaded anew"
    assert len(browser.requests) >= 5
    assert {asked.split("/")[2] for asked in browser.requests} == {f"127.0.0.1:{server.port}"}
    browser.look(width=380, is_dark=True)
    assert browser.value("document.documentElement.scrollWidth") == 380, "it fits a phone"
    browser.look()

    curves = {"accuracy": ((2, 4), (0.5, 0.75)), "loss": ((1, 2, 4), (3.0, 2.0, 1.0))}
    seen = replace(watched.evaluate(), progress=TrainingProgress(4, 40, 1, curves))
    board.note(watched.paths.folder, seen)
    browser.open(address)
    assert text(browser, "#training-position") == "Step 4, batch 40, epoch 2."
    assert browser.value("charts.get('scalars').data") == [[1, 2, 4], [3, 2, 1], [None, 0.5, 0.75]]
    lines = browser.value("charts.get('scalars').series.map((one) => [one.label, one.show])")
    assert lines == [["step", True], ["loss", True], ["accuracy", False]], "losses come first"
    assert browser.complaints == []
    server.close()
    browser.wait_for("document.querySelector('#silent').hidden === false")


def test_the_daemon_serves_the_page_to_who_has_the_token_and_ends_at_sigterm(still: ToyTrainer) -> None:
    command = [sys.executable, "-m", "tranlogs", "monitor", str(still.journal.paths.folder), "--interval", "50ms"]
    command += ["--json", "--budget", "1GiB", "--http", "0.0.0.0:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment() | {TOKEN_NAME: TOKEN}) as daemon:
        assert daemon.stderr is not None
        lines = [daemon.stderr.readline() for _ in range(2)]
        served, watching = map(json.loads, lines)
        assert (watching["level"], watching["message"][-10:]) == ("info", ": watching")
        found = re.fullmatch(
            r"the page is at http://[^/]+:(\d+)/ and requires the token of TRANLOGS_HTTP_TOKEN", served["message"]
        )
        assert found is not None
        port, bearer = int(found[1]), {"Authorization": f"Bearer {TOKEN}"}
        assert ask(port, "/metrics").status == 401
        while "tranlogs_watched{" not in ask(port, "/metrics", **bearer).body:
            signal.sigtimedwait([], 0.05)
        while "of 1.0 GiB" not in ask(port, "/", **bearer).body:
            signal.sigtimedwait([], 0.05)
        daemon.send_signal(signal.SIGTERM)
        lines += daemon.stderr.readlines()
        assert daemon.wait(30) == 0
    assert TOKEN not in "".join(lines)
    assert "uvicorn" not in "".join(lines).lower()
