"""The dashboard without a browser: whom it answers, what it answers, how it starts and ends."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.monitor.monitors import seen_at, watching
from tests.shipping.ships import archiver, ship
from tests.support.faulty_store import FaultyStore
from tests.support.toy import ToyTrainer
from tests.support.toy_steps import killed
from tranlogs.base.config import MIB
from tranlogs.base.errors import UsageError
from tranlogs.catalog import CheckpointRow, Incident, MeasuredRow, SegmentRow, StoreRow, TimelineRow
from tranlogs.retention.advice import COLUMNS, list_choices
from tranlogs.retention.prune import Budget
from tranlogs.retention.value_decay import EvaluationRow, SegmentValues
from tranlogs_monitor.dashboard.access import access_on
from tranlogs_monitor.dashboard.metrics import Metrics
from tranlogs_monitor.dashboard.pages.board import Board, JournalView
from tranlogs_monitor.dashboard.pages.curves import curves
from tranlogs_monitor.dashboard.pages.journal_health import current_lost_work, describe_health
from tranlogs_monitor.dashboard.pages.page import journal_page, overview
from tranlogs_monitor.dashboard.server import WebServer
from tranlogs_monitor.settings import DaemonSettings
from tranlogs_monitor.watching.training_progress import ProgressReader
from tranlogs_monitor.watching.watch import Evaluation
from tranlogs_torch import LoggedOptimizer

TOKEN = "correct-horse"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
FOREIGN = {"Host": "attacker.example"}
PATHS = (f"/?token={TOKEN}", "/data.json", "/metrics", "/nothing")  # a token in the address counts for nothing
SECONDS_TO_CLOSE_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server has answered."""

    status: int
    headers: http.client.HTTPMessage
    body: str


def ask(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    """Send one request over a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read().decode())


@pytest.fixture(scope="module")
def board() -> Board:
    board = Board(DaemonSettings(interval_seconds=0.2))
    board.note(Path("run"), "it is damaged")
    return board


@pytest.fixture(scope="module")
def ports(board: Board) -> Iterator[dict[str, int]]:
    """Servers: on a loopback address with and without a token, and on all addresses with one, each for the same board."""
    servers = {
        "loopback": WebServer(("127.0.0.1", 0), Metrics(), board),
        "loopback, token": WebServer(("127.0.0.1", 0), Metrics(), board, token=TOKEN),
        "all": WebServer(("0.0.0.0", 0), Metrics(), board, token=TOKEN),
    }
    yield {name: server.port for name, server in servers.items()}
    for server in servers.values():
        server.close()


# Whom it answers.

ANY_TOKEN_BUT_THE_RIGHT_ONE = (
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": "Bearer \xe4"},
    {"Authorization": f"Bearer {TOKEN[:-1]}"},
    {"Cookie": f"token={TOKEN}"},
)


FOREIGN_HOSTS = [
    "localhost.attacker.example",
    "attacker.example:localhost",
    "localhost@attacker.example",
    "localhost.",
    "[::1]attacker.example",
    "::1",
    "0.0.0.0:9464",
    "127.0.0.3",
    ":9464",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("server", "headers", "status"),
    [
        ("loopback", [{}, {"Host": "localhost"}, {"Host": "[::1]:80"}, {"Host": "LOCALHOST:1"}], 200),
        ("loopback", [FOREIGN, *({"Host": host} for host in FOREIGN_HOSTS)], 421),
        ("loopback, token", ANY_TOKEN_BUT_THE_RIGHT_ONE, 401),
        ("loopback, token", [BEARER, {"Authorization": f"bearer  {TOKEN}"}], 200),
        ("loopback, token", [BEARER | FOREIGN], 421),
        ("all", [*ANY_TOKEN_BUT_THE_RIGHT_ONE, FOREIGN], 401),
        ("all", [BEARER, BEARER | {"Host": "dashboard.example"}], 200),
    ],
)
def test_who_is_answered(ports: dict[str, int], server: str, headers: list[dict[str, str]], status: int, path: str) -> None:
    for each in headers:
        answer = ask(ports[server], path, **each)
        assert answer.status == (404 if (path, status) == ("/nothing", 200) else status), each
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert (answer.headers["Content-Security-Policy"] or "").startswith("default-src 'self';")
        assert "Set-Cookie" not in answer.headers
        if status != 200:
            assert (answer.body.count("\n"), "damaged" in answer.body) == (1, False)
            assert answer.headers["WWW-Authenticate"] == ("Bearer" if status == 401 else None)
        elif path.startswith("/?"):
            assert "it is damaged" in answer.body


def test_an_address_that_others_reach_needs_a_token() -> None:
    """Some are of no machine that runs this."""
    for address in ("127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"):
        assert [access_on(address, token).hosts is not None for token in (None, TOKEN)] == [True, True]
    for address in ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0"):
        assert access_on(address, TOKEN).hosts is None
        with pytest.raises(UsageError, match=r"other machines reach this address\. Set TRANLOGS_HTTP_TOKEN"):
            access_on(address, None)


# What it answers.


def samples(port: int) -> dict[tuple[str, ...], float]:
    """/metrics, by name and labels but for the journal's."""
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "journal")): sample.value
        for family in text_string_to_metric_families(ask(port, "/metrics").body)
        for sample in family.samples
    }


def test_metrics_are_those_of_the_catalog_and_the_store(run: ToyTrainer) -> None:
    metrics, board, paths, catalog = Metrics(), Board(DaemonSettings()), run.journal.paths, run.journal.catalog
    server = WebServer(("127.0.0.1", 0), metrics, board)
    watch = watching(run, budget=Budget(100 * MIB))

    def found() -> dict[tuple[str, ...], float]:
        metrics.note(paths.folder, watch.evaluate())
        return samples(server.port)

    first, rows = found(), catalog.segments()
    assert first["tranlogs_step", "committed"] == catalog.watermarks().committed == 31
    assert first["tranlogs_bytes", "log"] == sum(row.size for row in rows)
    assert first["tranlogs_bytes", "checkpoints"] == sum(row.nbytes for row in catalog.checkpoints())
    expected = {"budget_bytes": 100 * MIB, "protected_segments": 2, "anchor_step": 20, "trainer_alive": 1, "watched": 1}
    expected |= {"logging_suspended": 0, "over_budget": 0, "pruned_bytes_total": 0}
    assert {name: first[f"tranlogs_{name}",] for name in expected} == expected
    assert first["tranlogs_segments", "sealed"] == 6
    assert f'journal="{paths.folder}"' in ask(server.port, "/metrics").body
    assert not any(name[0].startswith("tranlogs_store") for name in first), "there is none"

    store = FaultyStore()
    store.is_durable = False
    archived = ship(paths.folder.parent, store).archived
    stored = found()
    assert stored["tranlogs_store_ok",] == 1
    assert stored["tranlogs_store_lag_steps", "archived"] == catalog.watermarks().committed - archived
    assert stored["tranlogs_store_bytes",] == sum(len(data) for name, data in store.objects.items() if "/objects/" in name)
    store.fails = lambda method, name: True
    with closing(archiver(paths.folder.parent, store)) as made:
        made.run_once()
    assert found()["tranlogs_store_ok",] == 0
    watch.close()

    watch = watching(run, budget=Budget(2 * MIB))
    found()
    pruned = found()
    assert (pruned["tranlogs_pruned_bytes_total",] > 4 * MIB, pruned["tranlogs_over_budget",]) == (True, 1)
    watch.close()
    metrics.note(paths.folder, None)
    assert samples(server.port)["tranlogs_watched",] == 0
    metrics.forget(paths.folder)
    assert ("tranlogs_watched",) not in samples(server.port)
    server.close()


def test_answers_are_read_only(still: ToyTrainer, seen: Evaluation) -> None:
    folder, board = still.journal.paths.folder, Board(DaemonSettings())
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    assert "No journal is watched yet" in ask(server.port, "/").body
    board.note(folder, seen)
    name = quote(str(folder), safe="")
    for path in ("/", f"/journal/{name}", f"/data.json?journal={name}", "/static/page.js", "/static/uplot.css", "/metrics"):
        answer = ask(server.port, path)
        assert (answer.status, bool(answer.body)) == (200, True)
        assert ask(server.port, path, "HEAD").body == ""
        assert [ask(server.port, path, method).status for method in ("POST", "PUT", "DELETE")] == [405] * 3
    data = json.loads(ask(server.port, "/data.json").body)
    assert (data["journal"], set(data["steps"])) == (str(folder), {"committed", "synced"}), "there is no store"
    for path in ("/journal/x", "/data.json?journal=x", "/static/../web.py", "/static/%2e%2e/web.py", "/../catalog.lmdb"):
        assert ask(server.port, path).status == 404
    assert ask(server.port, "/healthz").body == "ok\n"
    server.close()


def test_many_journals_are_counted_filtered_and_have_a_line_each(seen: Evaluation) -> None:
    board = Board(DaemonSettings())
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    for i in range(200):
        closed = replace(seen, owner=None)
        board.note(Path(f"runs/{'gpt' if i % 2 else 'cnn'}-{i:03d}"), "it is damaged" if i < 10 else closed if i < 80 else seen)
    for query, expected in {
        "": 200,
        "?show=trouble": 10,
        "?words=gpt": 100,
        "?words=gpt&show=trouble": 5,
        "?words=<b>": 0,
    }.items():
        page = Elements(ask(server.port, f"/{query}").body.encode())
        assert sum(name == "class" and (value or "").startswith("row ") for name, value in page.attributes) == expected, query
        assert re.findall(r"\d+ (?:training|closed|in trouble)", page.text) == ["120 training", "70 closed", "10 in trouble"]
        assert ("b" in page.tags, "No journal matches." in page.text) == (False, not expected)
    server.close()


class Elements(HTMLParser):
    """Collects tags, attributes and text of a page."""

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


def shown(view: JournalView, now: float) -> str:
    return journal_page(view, now=now, interval_seconds=10, has_others=False).decode()


def test_whatever_a_run_or_its_catalog_says_is_text(seen: Evaluation) -> None:
    name = 'runs/<script>alert(1)</script>\'" onload="x/{{ 7 * 7 }}/&amp;'
    plain, page = (Elements(shown(JournalView(one, seen), seen.at).encode()) for one in ("run", name))
    assert page.tags == plain.tags, "the name has made an element"
    assert page.text.count(name) == 2, "in the title and the heading"
    assert ("data-journal", name) in page.attributes
    journals = [JournalView(name, seen), JournalView(name, None, problem=name)]
    rows = Elements(overview(journals, now=seen.at, interval_seconds=10))
    assert (rows.tags.count("script"), rows.text.count(name)) == (1, 3)
    assert not [one for one, _ in page.attributes + rows.attributes if one.startswith("on")]

    store = StoreRow(f"file:///{name}", "me", problem=name)
    owner = replace(seen.owner, host=name) if seen.owner is not None else None
    reasons = dict.fromkeys((row.name for row in seen.rows.checkpoints), name)
    said = replace(seen.rows, store=store, incidents=[Incident(1, name, 31, 0.0)])
    told = replace(seen, rows=said, owner=owner, anchor=None, pruning=replace(seen.pruning, reasons=reasons))
    page = Elements(shown(JournalView("run", told), seen.at).encode())
    assert page.tags.count("script") == 2
    assert page.text.count(name) >= 5
    assert any(one == "title" and name in (value or "") for one, value in page.attributes)
    templates = files("tranlogs_monitor.dashboard.pages") / "templates"
    for template in templates.iterdir():
        text = template.read_text()
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", text), template.name
        assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:|<script(?! src=\"/static/)", text), template.name


def test_how_a_journal_is_in_words(run: ToyTrainer, tmp_path: Path) -> None:
    def health(seen: Evaluation | None, problem: str = "") -> tuple[str, str]:
        state = describe_health(JournalView("run", seen, problem=problem))
        return state.level, state.headline

    live = seen_at(run)
    assert health(live) == ("fine", "All steps up to 31 are safe if the process dies.")
    assert health(None, "it is damaged") == ("problem", "The journal cannot be read: it is damaged")
    old = "The journal cannot be read now, and the rest of this page is old: it is damaged"
    assert health(live, "it is damaged") == ("problem", old)
    level, words = health(seen_at(killed(run, tmp_path / "copy") / "rank0"))
    assert level == "attention"
    assert words.endswith("died without closing the run; the next one will continue after step 31.")
    store = StoreRow("file:///there", "me", problem="it is full")
    stopped = replace(live, rows=replace(live.rows, store=store))
    assert health(stopped) == ("attention", "Shipping to file:///there has stopped: it is full.")

    copy = killed(run, tmp_path / "damaged") / "rank0"
    newest = max((copy / "checkpoints").iterdir())
    data = bytearray((newest / "state.safetensors").read_bytes())
    data[5000] ^= 0xFF
    (newest / "state.safetensors").write_bytes(data)
    damaged = seen_at(copy)
    words = "The checkpoint of step 20 is damaged; recovery starts from the one of step 10."
    assert health(damaged) == ("problem", words), "the worst comes first"
    assert current_lost_work(damaged, [])[1].safe_step == 10, "what is damaged saves nothing"
    level, words = health(seen_at(run, budget=Budget(2 * MIB)))
    assert level == "attention"
    too_much = r"The data that recovery needs exceed the budget \(\S+ MiB\): a checkpoint was requested from its trainer, .*"
    assert re.fullmatch(too_much, words)
    run.journal.close()
    words = "No process is training. The run was closed. The next one will continue after step 31."
    assert health(seen_at(run.journal.paths.folder)) == ("idle", words)


def test_what_the_log_costs_is_what_advise_says(seen: Evaluation) -> None:
    measured = MeasuredRow("inputs", "gradients", 0.05, 0.31, False, True, 0.1, 10**6, 0.01, True, 0.5, 0.02, 0.06, None)
    costly = replace(seen, rows=replace(seen.rows, measured=measured))
    advice = costly.advise()
    assert advice is not None
    page = Elements(shown(JournalView("run", costly), seen.at).encode())
    words = (
        "gradients would cost 31 % of a step, and 5 % are allowed: no tensors are logged; a crash costs up to 19 s of computing"
    )
    assert words in page.text
    assert 'log="inputs", checkpoint_every="auto", as it is: the run wastes 0.54 %' in page.text
    lines = list_choices(advice)
    assert [value for name, value in page.attributes if name == "data-choice"] == [f"{one[0]} {one[1]}" for one in lines]
    assert all(word in page.text for word in (*COLUMNS, *lines[1]))

    # Steps without tensors are not called safe: recovery starts at step 20, and the log ends at 31.
    state = describe_health(JournalView("run", costly))
    again = "it computes the steps from 21 on again"
    assert (state.level, state.headline) == ("fine", f"If the process dies, training goes on after step 31: {again}.")
    assert "11 steps until training has computed them again" in page.text
    assert "no finished step" not in page.text
    logged = replace(costly, rows=replace(seen.rows, measured=replace(measured, phase="gradients")))
    assert "no finished step" in shown(JournalView("run", logged), seen.at)
    unknown = replace(seen, rows=replace(seen.rows, measured=None))
    assert "What the log costs" not in shown(JournalView("run", unknown), seen.at)


def test_a_run_of_months_makes_no_larger_page(seen: Evaluation) -> None:
    many = 20_000
    sealed = [
        SegmentRow(i, f"{i:016x}", f"{i}.seg", MIB, "sealed", 1, i * 10, i * 10, i * 10 + 10, i * 10 + 10) for i in range(many)
    ]
    worth = SegmentValues(1e9, np.arange(many), np.linspace(0, 1, many))
    checkpoint = CheckpointRow("step-1", 100_000, 100_000, "", 1, 1, 0.0)
    rows = replace(seen.rows, segments=sealed, checkpoints=[checkpoint], timelines=[TimelineRow(1)])
    long = replace(seen, worth=worth, anchor=checkpoint, protected={i: i >= 10_000 for i in range(many)}, rows=rows)
    row = EvaluationRow(1, 1e9, ordinals=worth.ordinals.tolist(), values=worth.values.tolist())
    page = shown(JournalView("run", long, (row,)), 1e9)
    cells = page.partition('<div class="cells">')[2].partition("</div>")[0]
    assert 300 <= cells.count('class="cell') <= 361
    assert cells.count("diamond anchor") == 1
    assert 170 <= cells[: cells.index("diamond anchor")].count("cell free") <= 181, "the checkpoint stands where it belongs"
    found = curves(JournalView("run", long, (row,)))["values"]
    assert (len(found), found[0]["segment"], found[-1]["segment"]) == (24, 0, many - 1)
    assert len(page) < 200_000


def train(run: Path, until: int, step: int | None = None) -> dict[str, Any]:
    """Train on with a loader of five batches; return the curves of the script."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    loader = DataLoader(TensorDataset(torch.randn(10, 3)), batch_size=2, shuffle=True)
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), run, model, segment_bytes=1 << 20, keep=100)
    with optimizer:
        optimizer.track(loader=loader)
        optimizer.recover(step)
        for (batch,) in optimizer.batches(loader, until=until):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.log_scalars(loss=loss.item(), accuracy=float("nan"))
        return dict(optimizer.scalars)


def test_loss_epoch_and_batch_are_shown(tmp_path: Path) -> None:
    run = tmp_path / "run"
    scalars = train(run, 12)
    seen = seen_at(run / "rank0")
    assert seen.progress is not None
    assert (seen.progress.step, seen.progress.batch, seen.progress.epoch) == (12, 12, 2)
    view = JournalView("run", seen)
    page = Elements(shown(view, seen.at).encode())
    loss = f"{scalars['loss'][1][-1]:.5g}"
    assert "Step 12, batch 12, epoch 3." in page.text
    assert loss in page.text
    assert ("data-scalar", "loss") in page.attributes
    rows = Elements(overview([view, JournalView("other", seen)], now=seen.at, interval_seconds=10))
    assert rows.text.count(f"loss {loss}") == rows.text.count("epoch 3") == 2
    numbers = json.loads(json.dumps(curves(view), allow_nan=False))["scalars"]
    assert numbers["steps"] == scalars["loss"][0] == list(range(1, 13))
    assert numbers["columns"] == {"loss": scalars["loss"][1], "accuracy": [None] * 12}

    reader = ProgressReader(run / "rank0")
    assert reader.read() is reader.read()
    known = train(run, 8, step=7)
    found = reader.read()
    assert found is not None
    assert (found.step, found.batch) == (8, 8), "another timeline begins anew"
    assert found.curves["loss"] == (tuple(range(1, 9)), tuple(known["loss"][1]))


# How it starts, fails and ends.


def test_a_port_that_is_taken_is_named_and_nothing_is_left(ports: dict[str, int], board: Board) -> None:
    host = "127.0.0.1"
    before, port = set(threading.enumerate()), ports["loopback"]
    with pytest.raises(UsageError, match=rf"^--http {host}:{port}: cannot listen on this address \(Address already in use\)$"):
        WebServer((host, port), Metrics(), board)
    assert set(threading.enumerate()) == before


def test_closing_is_prompt_and_frees_the_port_beside_open_connections(board: Board) -> None:
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    silent, half, idle = (socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(3))
    half.sendall(b"GET / HTTP/1.1\r\nHost: loc")
    idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert idle.recv(15) == b"HTTP/1.1 200 OK"
    start = time.monotonic()
    server.close()
    assert time.monotonic() - start < SECONDS_TO_CLOSE_MAX
    WebServer(("127.0.0.1", server.port), Metrics(), board).close()
    for connection in (silent, half, idle):
        connection.close()


def test_what_is_no_request_ends_and_a_forked_child_has_no_part_in_it(
    board: Board, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tranlogs_monitor.dashboard.server._REQUEST_SECONDS_MAX", 0.05)
    caplog.set_level(logging.DEBUG)
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    no_http, no_host = (b"\x16\x03\x01 no\r\n\r\n", b"HTTP/1.1 400"), (b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 421")
    for begun, answer in ((b"", b""), (b"GET / HT", b""), no_http, no_host):
        with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
            connection.sendall(begun)
            assert connection.recv(4096)[:12] == answer
    child = os.fork()
    if child == 0:
        server.close()
        os._exit(len(threading.enumerate()) - 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ask(server.port, "/healthz").status == 200
    server.close()
    assert [record.name for record in caplog.records if record.name != "asyncio"] == []


def test_a_request_that_fails_is_logged_and_the_next_one_is_answered(
    ports: dict[str, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tranlogs_monitor.dashboard.routes.curves", lambda shown: 1 / 0)
        answer = ask(ports["loopback"], "/data.json")
    assert (answer.status, answer.headers["Cache-Control"], "division" in answer.body) == (500, "no-store", False)
    (record,) = caplog.records
    assert record.getMessage() == "could not answer the request for /data.json"
    assert record.exc_info is not None
    assert ask(ports["loopback"], "/data.json").status == 200
