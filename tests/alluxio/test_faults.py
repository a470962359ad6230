"""Processes and memory of a real cluster are lost: what the store says then is true, and it goes on when they are back."""

from __future__ import annotations

import io
import itertools
import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.alluxio.cluster import Cluster
from tests.alluxio.test_store import demand_problem, is_durable
from tests.shipping.ships import archiver, assert_comes_back, marks, trained
from tests.support.stores import MIB, content_of, put, read
from tranlogs.base.errors import CorruptObject, NotARun, StoreRefused, StoreUnavailable
from tranlogs.shipping import archiver as archiver_module
from tranlogs.shipping import pull
from tranlogs.stores import ObjectStatus, Store, open_store
from tranlogs.stores.check import check_store

CONTENT = random.Random(7).randbytes(20 * MIB)  # two blocks
_PERSIST_SECONDS = 45.0


@pytest.fixture
def store(alluxio: Cluster) -> Iterator[Store]:
    with open_store(alluxio.url(f"/{uuid.uuid4().hex}")) as store:
        yield store


@pytest.fixture
def twice(alluxio: Cluster) -> Iterator[Store]:
    """A store that wants two copies."""
    with open_store(alluxio.url(f"/{uuid.uuid4().hex}", replication=2)) as store:
        yield store


class Interrupted(io.BytesIO):
    """Content at the middle of which something happens, once."""

    def __init__(self, content: bytes, event: Callable[[], object]) -> None:
        super().__init__(content)
        self._event: Callable[[], object] | None = event

    def read(self, size: int | None = -1) -> bytes:
        if self._event is not None and self.tell() >= len(self.getbuffer()) // 2:
            event, self._event = self._event, None
            event()
        return super().read(size)


def status_of(store: Store, name: str) -> ObjectStatus:
    status = store.stat(name)
    assert status is not None
    return status


def is_sound(store: Store, name: str) -> bool:
    """Whether the store calls an object of CONTENT archived; if so, it must be so."""
    status = store.stat(name)
    if status is None or not status.is_complete or status.nbytes != len(CONTENT) or not status.copies:
        return False
    assert read(store, name) == CONTENT
    return True


def send(alluxio: Cluster, store: Store, names: Iterator[str]) -> str:
    """Attempts under fresh names until one is sound; its name."""
    good: list[str] = []

    def attempt() -> bool:
        name = next(names)
        put(store, name, CONTENT)
        if is_sound(store, name):
            good.append(name)
        return bool(good)

    alluxio.wait(attempt, "an attempt succeeds")
    return good[0]


def persisted(alluxio: Cluster, store: Store, name: str) -> str:
    """Wait until an object is durable; its name. It is asked for again, as the archiver does: a worker that is away for long
    makes LOST what it alone has, and a request can be dropped."""
    asked = time.monotonic()

    def is_so() -> bool:
        nonlocal asked
        status = store.stat(name)
        if status is None:  # seen once, of a master that had just come back; what is gone for good is never durable
            return False
        if status.is_lost or status.is_forgotten or time.monotonic() - asked > _PERSIST_SECONDS:
            asked = time.monotonic()
            store.request_durability(name)
        return is_durable(store, name)

    alluxio.wait(is_so, "persisted")
    return name


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures of shipping are tried again soon."""
    monkeypatch.setattr(archiver_module, "RETRY_SECONDS_MIN", 0.1)
    monkeypatch.setattr(archiver_module, "RETRY_SECONDS_MAX", 0.5)


def fresh_names() -> Iterator[str]:
    return (f"segment~{number}" for number in itertools.count())


@pytest.mark.usefixtures("no_pauses")
def test_memory_is_lost_before_it_is_persisted(
    alluxio: Cluster, store: Store, twice: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The master dies before, in the middle of a write."""
    run, run_twice = tmp_path / "one", tmp_path / "two"
    alluxio.kill("job-worker-0", "job-worker-1")  # nothing is persisted now
    demand_problem(store, "the object is not durable")
    for each in (run, run_twice):
        trained(each, 15)
    made, other = archiver(run, store), archiver(run_twice, twice)
    alluxio.wait(lambda: made.run_once().archived == other.run_once().archived == 15, "archived")
    put(store, "one copy", CONTENT)
    put(twice, "two copies", CONTENT)
    put(store, "on disk", CONTENT)
    holders = {name: 2 if name == "two copies" else 1 for name in ("one copy", "two copies", "on disk")}
    assert status_of(store, "one copy").copies == holders["one copy"]
    assert status_of(twice, "two copies").copies == holders["two copies"]

    content = Interrupted(CONTENT, lambda: alluxio.kill("master"))
    with suppress(StoreUnavailable):
        store.put("segment", content_of(content, len(CONTENT)))
    alluxio.restart("master")
    alluxio.wait(lambda: alluxio.workers() == 2, "the master knows the workers again", "master")
    is_sound(store, "segment")
    send(alluxio, store, fresh_names())
    for each, name in ((store, "one copy"), (twice, "two copies")):  # which were in memory alone
        alluxio.wait(lambda each=each, name=name: status_of(each, name).copies == holders[name], "known again")
        assert read(each, name) == CONTENT

    alluxio.lose(0)
    assert read(twice, "two copies") == CONTENT  # from the peer, while the master does not know yet
    assert_comes_back(twice, "two/rank0", tmp_path / "from the peer", 15)
    for each in (store, twice):
        assert not list((alluxio.under_store / urlsplit(each.url).path.strip("/")).rglob("*-*")), "it was in memory alone"
    alluxio.kill("worker-1")  # whose memory is kept
    alluxio.wait(lambda: status_of(store, "one copy").is_lost and status_of(twice, "two copies").is_lost, "lost")
    with pytest.raises(CorruptObject, match="the store has lost it"):
        read(store, "one copy")
    with pytest.raises(NotARun, match="the store has lost it"):
        pull(store, "one/rank0", tmp_path / "nothing/rank0")
    demand_problem(store, f"store {store.url}: ")
    alluxio.wait(lambda: made.run_once().archived < 15, "what is lost does not count")
    assert "the store has lost" in caplog.text
    assert marks(run).archived < 15
    alluxio.wait(lambda: other.run_once().archived == 0, "nor that of which a copy is away")
    shutil.rmtree(run_twice / "rank0/checkpoints")  # nothing is here any more that could be sent again
    for path in (run_twice / "rank0/log").iterdir():
        path.unlink()

    alluxio.mend()
    with closing(made):
        alluxio.wait(lambda: made.run_once().persisted == 15, "sent again, and persisted")
    assert_comes_back(store, "one/rank0", tmp_path / "sent again", 15)
    alluxio.wait(lambda: status_of(twice, "two copies").copies == 1, "the kept copy is known again")
    assert read(twice, "two copies") == CONTENT
    assert status_of(twice, "two copies").is_lost  # it stays so
    twice.request_durability("two copies")
    persisted(alluxio, twice, "two copies")
    assert read(twice, "two copies") == CONTENT
    with closing(other):
        alluxio.wait(lambda: other.run_once().persisted == 15, "what has come back is hastened, and persisted")
    assert_comes_back(twice, "two/rank0", tmp_path / "came back", 15)
    store.request_durability("one copy")
    assert status_of(store, "one copy").is_lost  # there is nothing to persist: it is to be sent again
    again = send(alluxio, store, fresh_names())
    persisted(alluxio, store, again)


@pytest.mark.soak
def test_full_memory_refuses_until_files_are_persisted(alluxio: Cluster, store: Store) -> None:
    for number in (0, 1):
        alluxio.lose(number)
        alluxio.restart(f"worker-{number}", alluxio_worker_ramdisk_size="160MB")
    alluxio.wait(lambda: alluxio.workers() == 2, "the workers are back", "master")
    names = fresh_names()
    sent, refused = [send(alluxio, store, names)], {}  # the first takes a while: the proxy still knows the workers before

    def is_full() -> bool:
        name = next(names)
        try:
            put(store, name, CONTENT)
            sent.append(name)
        except StoreUnavailable as error:
            refused[name] = str(error)
        return any("space" in why for why in refused.values())

    alluxio.wait(is_full, "memory is full", "proxy")
    assert [name for name in refused if store.stat(name) is not None] == []  # nothing of them is left over
    for number in (0, 1):
        alluxio.restart(f"job-worker-{number}")
    alluxio.wait(lambda: all(is_durable(store, name) for name in sent), "persisted")
    name = send(alluxio, store, (f"more~{number}" for number in itertools.count()))
    for each in (*sent, name):
        assert read(store, each) == CONTENT


def test_a_proxy_without_rest_api_is_refused_with_the_property_to_set(alluxio: Cluster) -> None:
    alluxio.restart("proxy", alluxio_proxy_s3_v2_version_enabled="true")
    store = open_store(alluxio.url("/nothing"))

    alluxio.wait(
        lambda: alluxio.ask("POST", "proxy.web", "/api/v1/paths///exists") == (200, b""), "it answers nothing", "proxy"
    )
    for call in (store.names, store.delete, store.stat):  # of which such a proxy answers the second with "fine"
        with pytest.raises(StoreRefused, match=r"alluxio\.proxy\.s3\.v2\.version\.enabled=false"):
            call("object")
    assert "alluxio.proxy.s3.v2.version.enabled=false" in (check_store(store).problem or "")
