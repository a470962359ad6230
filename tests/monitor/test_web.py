"""The dashboard's server over real connections: whom it answers, and how it starts, fails and ends."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.monitor.asking import ask
from tests.monitor.test_page import _browser, browser
from tests.monitor.test_state import seen_at
from tests.monitor.test_watch import run
from tests.support.browser import Browser
from tests.support.toy import ToyTrainer
from tranlogs.base.errors import UsageError
from tranlogs_monitor.dashboard.access.tokens import Token
from tranlogs_monitor.dashboard.metrics import Metrics
from tranlogs_monitor.dashboard.pages.board import Board
from tranlogs_monitor.dashboard.server import WebServer
from tranlogs_monitor.settings import DaemonSettings

__all__ = ["_browser", "browser", "run"]

TOKEN = Token("correct-horse", "--token-file x")
PATHS = ("/", "/journal/run", "/data.json", "/static/page.js", "/metrics", "/healthz", "/nothing")
SECONDS_TO_CLOSE_MAX = 5.0


@pytest.fixture
def board() -> Board:
    board = Board(DaemonSettings(interval_seconds=0.2))
    board.note(Path("run"), "it is damaged")
    return board


@pytest.fixture
def local(board: Board) -> Iterator[WebServer]:
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    yield server
    server.close()


@pytest.fixture
def open_to_all(board: Board) -> Iterator[WebServer]:
    """On all addresses of this machine, with a token."""
    server = WebServer(("0.0.0.0", 0), Metrics(), board, token=TOKEN)
    yield server
    server.close()


# Whom it answers.


@pytest.mark.parametrize("path", PATHS)
def test_a_foreign_host_is_refused_on_a_loopback_address(local: WebServer, path: str) -> None:
    for host in ("attacker.example", f"attacker.example:{local.port}", "localhost.attacker.example"):
        answer = ask(local.port, path, Host=host)
        assert answer.status == 421
        assert answer.body.count("\n") == 1
        assert "damaged" not in answer.body
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9464", "[::1]:80", "LOCALHOST:1"])
def test_a_local_host_is_answered(local: WebServer, host: str) -> None:
    assert ask(local.port, "/metrics", Host=host).status == 200
    assert "it is damaged" in ask(local.port, "/", Host=host).body


def test_a_request_without_a_host_is_refused(local: WebServer) -> None:
    with socket.create_connection(("127.0.0.1", local.port), 10) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 421 " in connection.recv(4096).partition(b"\r\n")[0]


@pytest.mark.parametrize("path", PATHS)
def test_every_address_requires_the_token(open_to_all: WebServer, path: str) -> None:
    port, right = open_to_all.port, f"Bearer {TOKEN.value}"
    wrong = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN.value}"},
        {"Authorization": TOKEN.value},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer \xe4"},
        {"Cookie": f"{TOKEN.cookie_name}=wrong"},
        {"Cookie": f"{TOKEN.cookie_name}={TOKEN.value}"},
        {"Cookie": f"other={TOKEN.cookie_value}"},
    ]
    for headers in wrong:
        answer = ask(port, path, **headers)
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "Set-Cookie" not in answer.headers
        assert "Content-Security-Policy" in answer.headers
        assert answer.body.count("\n") == 1
    for query in ("?token=", "?token=wrong", "?token=correct-hors", f"?Token={TOKEN.value}"):
        assert ask(port, path + query).status == 401
    found = ask(port, path, Authorization=right)
    assert found.status == (404 if path == "/nothing" else 200)
    assert "Set-Cookie" not in found.headers
    assert ask(port, path, Authorization=right, Host="dashboard.example").status == found.status, "a proxy's name"


def test_a_token_in_the_address_is_answered_with_a_cookie_that_stands_for_it(open_to_all: WebServer) -> None:
    answer = ask(open_to_all.port, f"/?token={TOKEN.value}")
    assert answer.status == 200
    cookie, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} == set(attributes)
    assert TOKEN.value not in cookie
    assert ask(open_to_all.port, "/metrics", Cookie=f"other=1; {cookie}").status == 200
    assert ask(open_to_all.port, "/metrics", "POST").status == 401
    assert ask(open_to_all.port, "/metrics", "POST", Cookie=cookie).status == 405


def test_a_random_token_is_made_where_none_is_given_and_stands_in_the_url(board: Board) -> None:
    server = WebServer(("0.0.0.0", 0), Metrics(), board)
    token = server.access.token
    assert token is not None
    assert server.url == f"http://{socket.gethostname()}:{server.port}/?token={token.value}"
    assert ask(server.port, "/").status == 401
    assert ask(server.port, f"/?token={token.value}").status == 200
    server.close()


def test_a_token_that_was_given_is_not_in_the_url_and_is_required_on_loopback_too(board: Board) -> None:
    server = WebServer(("127.0.0.1", 0), Metrics(), board, token=TOKEN)
    assert server.url == f"http://127.0.0.1:{server.port}/"
    assert ask(server.port, "/").status == 401
    assert ask(server.port, "/", Authorization=f"Bearer {TOKEN.value}").status == 200
    assert ask(server.port, "/", Authorization=f"Bearer {TOKEN.value}", Host="attacker.example").status == 421
    server.close()


def test_no_auth_answers_everyone(board: Board) -> None:
    server = WebServer(("0.0.0.0", 0), Metrics(), board, has_auth=False)
    assert "token" not in server.url
    assert ask(server.port, "/metrics", Host="dashboard.example").status == 200
    server.close()


def test_a_browser_gives_the_token_once_and_draws_the_charts(
    run: ToyTrainer, board: Board, open_to_all: WebServer, browser: Browser
) -> None:
    board.forget(Path("run"))
    for _ in range(2):
        board.note(run.journal.paths.folder, seen_at(run))
    browser.open(f"http://127.0.0.1:{open_to_all.port}/?token={TOKEN.value}")
    assert browser.value("location.href") == f"http://127.0.0.1:{open_to_all.port}/", "the token stays in the address"
    browser.wait_for("charts.size === 3 && Number(document.body.dataset.looks) >= 2")
    assert browser.value("document.cookie") == "", "a script can read the cookie"
    browser.open(f"http://127.0.0.1:{open_to_all.port}/")
    assert browser.value("document.querySelector('#silent').hidden") is True
    assert browser.complaints == []


# How it starts, fails and ends.


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_is_taken_is_named_and_nothing_is_left(local: WebServer, board: Board, host: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(
        UsageError, match=rf"^--http {host}:{local.port}: cannot listen on this address \(Address already in use\)$"
    ):
        WebServer((host, local.port), Metrics(), board)
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "a..b", "x" * 70])
def test_an_address_that_is_not_of_this_machine_is_named(board: Board, host: str) -> None:
    with pytest.raises(UsageError, match=rf"^--http {host}:0: cannot listen on this address \(.+\)$"):
        WebServer((host, 0), Metrics(), board)


def test_closing_is_prompt_and_frees_the_port_beside_open_connections(board: Board) -> None:
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    silent, half, idle = (socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(3))
    half.sendall(b"GET / HTTP/1.1\r\nHost: loc")
    idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert idle.recv(15) == b"HTTP/1.1 200 OK"
    start = time.monotonic()
    server.close()
    assert time.monotonic() - start < SECONDS_TO_CLOSE_MAX
    assert "tranlogs-web" not in [thread.name for thread in threading.enumerate()]
    WebServer(("127.0.0.1", server.port), Metrics(), board).close()
    for connection in (silent, half, idle):
        connection.close()


def test_a_server_that_is_closed_at_once_ends(board: Board) -> None:
    for _ in range(3):
        WebServer(("127.0.0.1", 0), Metrics(), board).close()
    assert "tranlogs-web" not in [thread.name for thread in threading.enumerate()]


def test_signal_handlers_are_not_touched_and_nothing_is_logged(board: Board, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    assert ask(server.port, "/healthz").status == 200
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    server.close()
    assert [record.name for record in caplog.records if record.name != "asyncio"] == []


def test_a_forked_child_has_no_part_in_it(local: WebServer) -> None:
    assert ask(local.port, "/healthz").status == 200
    child = os.fork()
    if child == 0:
        local.close()
        os._exit(len(threading.enumerate()) - 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ask(local.port, "/healthz").status == 200


def test_a_connection_that_sends_no_request_is_closed(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlogs_monitor.dashboard.server._REQUEST_SECONDS_MAX", 0.05)
    server = WebServer(("127.0.0.1", 0), Metrics(), board)
    for begun in (b"", b"GET / HT"):
        with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
            connection.sendall(begun)
            assert connection.recv(4096) == b""
    server.close()


def test_a_request_that_fails_is_logged_and_the_next_one_is_answered(
    local: WebServer, board: Board, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tranlogs_monitor.dashboard.routes.curves", lambda shown: 1 / 0)
        answer = ask(local.port, "/data.json")
    assert answer.status == 500
    assert answer.headers["Cache-Control"] == "no-store"
    assert "division" not in answer.body
    (record,) = caplog.records
    assert record.getMessage() == "could not answer the request for /data.json"
    assert record.exc_info is not None
    assert ask(local.port, "/data.json").status == 200
