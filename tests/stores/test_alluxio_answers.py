"""What a proxy can answer, or not answer, and what becomes of it: every error is one of ours, and every call ends.

A made-up server serves these tests of errors only; tests/alluxio has a real cluster.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest
import requests
import urllib3
from alluxio import exceptions

from tests.support.stores import put, read
from tranlogs.base.errors import CorruptObject, StoreRefused, StoreUnavailable
from tranlogs.stores import ObjectStatus
from tranlogs.stores import alluxio as module
from tranlogs.stores.alluxio import AlluxioStore

Answer = Callable[["Handler"], None]

INFO = {
    "blockIds": [1],
    "blockSizeBytes": 1,
    "cacheable": True,
    "completed": True,
    "creationTimeMs": 1,
    "lastModificationTimeMs": 1,
    "fileId": 1,
    "folder": False,
    "owner": "",
    "group": "",
    "inMemoryPercentage": 100,
    "length": 4,
    "name": "object",
    "path": "/root/object",
    "ufsPath": "",
    "pinned": False,
    "persisted": False,
    "persistenceState": "TO_BE_PERSISTED",
    "mode": 420,
    "mountPoint": False,
    "ttl": -1,
    "ttlAction": "DELETE",
    "fileBlockInfos": [],
}


def block(*hosts: str) -> dict[str, object]:
    addresses = [{"host": host, "rpcPort": 1, "dataPort": 1, "webPort": 1} for host in hosts]
    locations = [{"workerId": 1, "workerAddress": address, "tierAlias": "MEM"} for address in addresses]
    return {"blockInfo": {"blockId": 1, "length": 2, "locations": locations}, "offset": 0, "ufsLocations": []}


class Handler(BaseHTTPRequestHandler):
    """Answers by the last part of the path, as the server was told."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        action = self.path.partition("?")[0].rpartition("/")[2]
        self.server.asked.append((action, body))  # type: ignore[attr-defined]
        self.server.answers[action](self)  # type: ignore[attr-defined]

    def give(self, status: int, body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Proxy(ThreadingHTTPServer):
    """A server that says what a test wants."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, bytes]] = []
        self.released = threading.Event()
        self.answers: dict[str, Answer] = {
            "exists": says(True),
            "create-file": says(7),
            "write": says(4),
            "close": says(None),
            "open-file": says(8),
            "read": says_bytes(b"1234"),
            "get-status": says(INFO),
            "list-status": says([INFO]),
            "delete": says(None),
            "rename": says(None),
        }

    def actions(self) -> list[str]:
        return [action for action, _ in self.asked]

    def handle_error(self, *_: object) -> None:
        pass  # connections that a test cuts


def says(content: object) -> Answer:
    return says_bytes(b"" if content is None else json.dumps(content).encode())


def says_bytes(body: bytes, status: int = 200) -> Answer:
    return lambda handler: handler.give(status, body)


def fails(status: str, message: str) -> Answer:
    return says_bytes(json.dumps({"statusCode": status, "message": message}).encode(), 500)


def cuts(handler: Handler) -> None:
    """Half an answer, and the end of the connection."""
    handler.close_connection = True
    handler.give(200, b"12", 4)


def keeps_silent(handler: Handler) -> None:
    handler.close_connection = True
    handler.server.released.wait(30)  # type: ignore[attr-defined]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def store(proxy: Proxy) -> Iterator[AlluxioStore]:
    with AlluxioStore("127.0.0.1", proxy.server_address[1], "/root", copies=2) as store:
        yield store


CALLS: dict[str, Callable[[AlluxioStore], object]] = {
    "put": lambda store: put(store, "object", b"1234"),
    "get": lambda store: read(store, "object"),
    "stat": lambda store: store.stat("object"),
    "names": lambda store: store.names(""),
    "delete": lambda store: store.delete("object"),
    "request_durability": lambda store: store.request_durability("object"),
}
FIRST = {
    "put": "create-file",
    "get": "get-status",
    "stat": "get-status",
    "names": "list-status",
    "delete": "delete",
    "request_durability": "get-status",
}


def every_exception() -> list[BaseException]:
    kinds = [kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, BaseException)]
    made = [kind("BAD", "words") if kind is exceptions.AlluxioError else kind("words") for kind in kinds]
    return [
        *made,
        requests.ConnectionError("words"),
        requests.ReadTimeout("words"),
        requests.JSONDecodeError("words", "", 0),
        urllib3.exceptions.ProtocolError("words"),
        urllib3.exceptions.IncompleteRead(1, 2),
        OSError("words"),
    ]


def test_every_exception_of_the_client_is_translated(store: AlluxioStore, monkeypatch: pytest.MonkeyPatch) -> None:
    error: BaseException

    def fail(*_: object, **__: object) -> None:
        raise error

    for method in ("create_file", "get_status", "list_status", "delete", "rename"):
        monkeypatch.setattr(module.alluxio.Client, method, fail)
    for error in every_exception():
        for name, call in CALLS.items():
            if isinstance(error, exceptions.NotFoundError) and name != "put":
                continue  # an answer like others: tests/alluxio/test_store.py
            with pytest.raises((StoreRefused, StoreUnavailable)) as raised:
                call(store)
            assert store.url in str(raised.value)
            assert raised.value.__cause__ is error


NO_ANSWERS: dict[str, Answer] = {
    "html": says_bytes(b"<html>Server Error</html>", 500),
    "html as if fine": says_bytes(b"<html>fine</html>"),
    "nothing": says(None),
    "an object": says({}),
    "a list": says([3]),
    "unknown": fails("UNKNOWN", "anything"),
    "cut": cuts,
}
NOT_LOOKED_AT = [*(("delete", what) for what in ("html as if fine", "nothing", "an object", "a list")), ("names", "an object")]


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_that_is_none_is_unavailable(proxy: Proxy, store: AlluxioStore, name: str) -> None:
    for what, answer in NO_ANSWERS.items():
        proxy.answers[FIRST[name]] = answer
        if (name, what) in NOT_LOOKED_AT:
            CALLS[name](store)
        else:
            with pytest.raises(StoreUnavailable):
                CALLS[name](store)


@pytest.mark.parametrize("action", ["exists", "write", "read"])
def test_a_proxy_that_keeps_silent_is_unavailable_in_bounded_time(proxy: Proxy, action: str) -> None:
    proxy.answers[action] = keeps_silent
    with (
        AlluxioStore("127.0.0.1", proxy.server_address[1], "/root", answer_seconds=0.5) as store,
        pytest.raises(StoreUnavailable, match="timed out"),
    ):
        CALLS["get" if action in ("get-status", "open-file", "read") else "put"](store)


def test_nobody_listens_and_a_proxy_of_the_environment_is_not_asked(
    proxy: Proxy, store: AlluxioStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert read(store, "object") == b"1234"
    closed = AlluxioStore("127.0.0.1", 1, "/root")
    for call in CALLS.values():
        with pytest.raises(StoreUnavailable, match="refused"):
            call(closed)


@pytest.mark.parametrize(
    ("action", "answer", "said"),
    [
        ("read", says_bytes(b"123"), "it ends after 3 of 4 bytes"),
        ("get-status", says(INFO | {"completed": False}), "never finished"),
        ("get-status", says(INFO | {"persistenceState": "LOST"}), "the store has lost it"),
    ],
)
def test_what_is_not_whole_is_not_read(proxy: Proxy, store: AlluxioStore, action: str, answer: Answer, said: str) -> None:
    proxy.answers[action] = answer
    with pytest.raises(CorruptObject, match=said):
        read(store, "object")
    assert action == "read" or "open-file" not in proxy.actions(), "it is not tried"


def test_a_page_for_an_answer_is_what_there_is_of_an_object_that_no_worker_has(proxy: Proxy, store: AlluxioStore) -> None:
    proxy.answers["open-file"] = says_bytes(b"<Error>No available Alluxio worker found</Error>", 500)
    with pytest.raises(CorruptObject, match="the store has lost it"):
        read(store, "object")
    proxy.answers["get-status"] = says(INFO | {"persistenceState": "PERSISTED", "persisted": True})
    with pytest.raises(StoreUnavailable):
        read(store, "object")


def test_a_write_that_fails_closes_its_stream_and_deletes_what_is_there(proxy: Proxy, store: AlluxioStore) -> None:
    proxy.answers["write"] = fails("UNKNOWN", "Failed to cache: io exception")
    with pytest.raises(StoreUnavailable, match="Failed to cache: io exception"):
        put(store, "object", b"1234")
    assert [action for action in proxy.actions() if action != "exists"] == ["create-file", "write", "close", "delete"]


def test_too_few_workers_mean_fewer_copies_under_the_same_name(proxy: Proxy, store: AlluxioStore) -> None:
    few = fails("UNKNOWN", "Not enough workers for replications, 1 workers selected but 2 required")

    def answer(handler: Handler) -> None:
        proxy.answers["write"] = says(4)
        few(handler)

    proxy.answers["write"] = answer
    put(store, "object", b"1234")
    wanted = [json.loads(body)["replicationDurable"] for action, body in proxy.asked if action == "create-file"]
    assert wanted == [2, 1]
    assert [body for action, body in proxy.asked if action == "write"] == [b"1234"] * 2


def test_fewer_bytes_were_taken_than_were_sent(proxy: Proxy, store: AlluxioStore) -> None:
    proxy.answers["write"] = says(3)
    with pytest.raises(StoreUnavailable, match="expected 4 bytes to be accepted, got 3"):
        put(store, "object", b"1234")
    assert proxy.actions()[-1] == "delete"


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({}, ObjectStatus(4, is_durable=False, copies=0)),
        (
            {"completed": False, "persistenceState": "PERSISTED", "persisted": True},
            ObjectStatus(4, is_complete=False, is_durable=False, copies=0),
        ),
        ({"persistenceState": "PERSISTED", "persisted": True}, ObjectStatus(4, copies=0)),
        ({"persistenceState": "NOT_PERSISTED"}, ObjectStatus(4, is_durable=False, copies=0, is_forgotten=True)),
        (
            {"persistenceState": "NOT_PERSISTED", "completed": False},
            ObjectStatus(4, is_complete=False, is_durable=False, copies=0),
        ),
        ({"persistenceState": "LOST"}, ObjectStatus(4, is_durable=False, copies=0, is_lost=True)),
        ({"fileBlockInfos": [block("a", "b"), block("b", "c")]}, ObjectStatus(4, is_durable=False, copies=2)),
        ({"fileBlockInfos": [block("a", "b"), block()]}, ObjectStatus(4, is_durable=False, copies=0)),
        ({"folder": True}, None),
    ],
)
def test_what_a_status_means(proxy: Proxy, store: AlluxioStore, told: dict[str, object], status: ObjectStatus | None) -> None:
    proxy.answers["get-status"] = says(INFO | told)
    assert store.stat("object") == status


def test_only_what_may_be_repeated_is_repeated(proxy: Proxy, store: AlluxioStore) -> None:
    for name, action, times in (("stat", "get-status", 2), ("delete", "delete", 2), ("put", "create-file", 1)):
        proxy.asked.clear()
        proxy.answers[action] = cuts
        with pytest.raises(StoreUnavailable):
            CALLS[name](store)
        assert proxy.actions().count(action) == times


class Files:
    """Answers about files that can be renamed."""

    def __init__(self, proxy: Proxy, *paths: str) -> None:
        self.paths = set(paths)
        proxy.answers["get-status"] = self.status

    def status(self, handler: Handler) -> None:
        path = _path(handler)
        (says(INFO | {"path": path, "fileBlockInfos": [block("a")]}) if path in self.paths else _missing)(handler)


def _path(handler: Handler) -> str:
    return unquote(handler.path.partition("?")[0]).removeprefix("/api/v1/paths/").rpartition("/")[0]


_missing = fails("NOT_FOUND", "Path does not exist")


@pytest.mark.parametrize("is_done", [False, True])
def test_a_rename_without_an_answer_is_looked_after(proxy: Proxy, store: AlluxioStore, is_done: bool) -> None:
    files = Files(proxy, "/root/object")

    def silent(handler: Handler) -> None:
        if is_done:
            files.paths = {"/root/object~elsewhere"}
        cuts(handler)

    proxy.answers["rename"] = silent
    if is_done:
        store.request_durability("object")
    else:
        with pytest.raises(StoreUnavailable):
            store.request_durability("object")
    assert read(store, "object") == b"1234"


def test_too_few_workers_are_not_tried_again_if_the_stream_may_be_open(proxy: Proxy, store: AlluxioStore) -> None:
    proxy.answers["write"] = fails("UNKNOWN", "Not enough workers for replications, 1 workers selected but 2 required")
    proxy.answers["close"] = fails("UNKNOWN", "no answer")
    with pytest.raises(StoreUnavailable, match="may still exist"):
        put(store, "object", b"1234")
    assert proxy.actions().count("create-file") == 1
