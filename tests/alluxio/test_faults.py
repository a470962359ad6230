"""Processes and memory of a real cluster are lost: what the store says then is true, and it goes on when they are back."""

from __future__ import annotations

import io
import itertools
import random
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.alluxio.cluster import Cluster
from tests.alluxio.test_store import is_durable
from tranlogs.errors import CorruptObject, StoreRefused, StoreUnavailable
from tranlogs.store import ObjectStatus, Store, open_store
from tranlogs.store.check import check_store
from tranlogs.testing.stores import MIB, put, read

CONTENT = random.Random(7).randbytes(40 * MIB)  # three blocks


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


def send(alluxio: Cluster, store: Store, names: Iterator[str], copies: int = 1) -> str:
    """Attempts under fresh names until one is sound; its name."""
    good: list[str] = []

    def attempt() -> bool:
        name = next(names)
        put(store, name, CONTENT)
        if is_sound(store, name) and (status_of(store, name).copies or 0) >= copies:
            good.append(name)
        return bool(good)

    alluxio.wait(attempt, "an attempt succeeds")
    return good[0]


def persisted(alluxio: Cluster, store: Store, name: str) -> str:
    """Wait until an object is durable; its name then. A worker that is away for long makes LOST what it alone has."""
    names = [name]

    def is_so() -> bool:
        if status_of(store, names[-1]).is_lost:
            names.append(store.hasten(names[-1]))
        return is_durable(store, names[-1])

    alluxio.wait(is_so, "persisted")
    return names[-1]


def problem_of(store: Store, words: str) -> str:
    """The property that `tranlogs store check` names for its problem, which begins with some words."""
    finding = check_store(store, nbytes=1000, patience_seconds=1).findings[-1]
    assert not finding.is_good
    assert finding.what.startswith(words)
    named = re.search(r"alluxio(\.[a-z.]+)+[a-z]", finding.remedy)
    assert named is not None
    return named[0]


def fresh_names() -> Iterator[str]:
    return (f"segment~{number}" for number in itertools.count())


@pytest.mark.parametrize("victim", ["proxy", "worker-0", "master"])
def test_a_process_is_killed_in_the_middle_of_a_write(alluxio: Cluster, store: Store, victim: str) -> None:
    put(store, "before", CONTENT)
    content = Interrupted(CONTENT, lambda: alluxio.kill(victim))
    with suppress(StoreUnavailable):
        store.put("segment", content, len(CONTENT))
    alluxio.restart(victim)
    alluxio.wait_ready()
    is_sound(store, "segment")
    name = send(alluxio, store, fresh_names())
    for each in ("before", name):
        assert read(store, persisted(alluxio, store, each)) == CONTENT
    store.delete("segment")
    assert store.stat("segment") is None


def test_with_too_few_workers_there_are_fewer_copies(alluxio: Cluster, twice: Store) -> None:
    names = fresh_names()
    content = Interrupted(CONTENT, lambda: alluxio.kill("worker-1", "job-worker-1"))
    with suppress(StoreUnavailable):
        twice.put("segment", content, len(CONTENT))
    alluxio.wait(lambda: alluxio.workers() == 1, "the master knows that a worker is away", "master")
    name = send(alluxio, twice, names)
    assert status_of(twice, name).copies == 1
    assert problem_of(twice, "1 of 2 copies in the memory of workers") == "alluxio.worker.hostname"
    alluxio.wait(lambda: is_durable(twice, name), "persisted")
    alluxio.mend()
    again = send(alluxio, twice, names, copies=2)
    assert status_of(twice, again).copies == 2


def test_the_job_master_comes_back(alluxio: Cluster, store: Store) -> None:
    alluxio.kill("job-master")
    put(store, "segment", CONTENT)
    status = status_of(store, "segment")
    assert (status.is_complete, status.is_durable, status.is_lost) == (True, False, False)
    assert problem_of(store, "what was written is not durable") == "alluxio.job.master.hostname"
    alluxio.restart("job-master")
    alluxio.wait(lambda: is_durable(store, "segment"), "persisted")
    report = check_store(store, nbytes=MIB)
    assert report.is_usable
    assert report.durable_seconds is not None
    assert read(store, "segment") == CONTENT


def test_the_master_dies_before_a_file_is_persisted(alluxio: Cluster, store: Store) -> None:
    alluxio.kill("job-master")
    put(store, "segment", CONTENT)
    alluxio.kill("master")
    with pytest.raises(StoreUnavailable):
        store.stat("segment")
    alluxio.restart("master")
    alluxio.restart("job-master")
    alluxio.wait(lambda: is_durable(store, "segment"), "persisted")
    assert read(store, "segment") == CONTENT


def test_memory_is_lost_before_a_file_is_persisted(alluxio: Cluster, store: Store, twice: Store) -> None:
    alluxio.kill("job-worker-0", "job-worker-1")  # nothing is persisted now
    put(store, "one copy", CONTENT)
    put(twice, "two copies", CONTENT)
    put(store, "on disk", CONTENT)
    holders = {name: 2 if name == "two copies" else 1 for name in ("one copy", "two copies", "on disk")}
    assert status_of(store, "one copy").copies == holders["one copy"]
    assert status_of(twice, "two copies").copies == holders["two copies"]

    alluxio.restart("job-worker-0")
    alluxio.lose(0)
    assert read(twice, "two copies") == CONTENT  # from the peer, while the master does not know yet
    alluxio.kill("worker-1")  # whose memory is kept
    alluxio.wait(lambda: status_of(store, "one copy").is_lost and status_of(twice, "two copies").is_lost, "lost")
    with pytest.raises((StoreUnavailable, CorruptObject)):
        read(store, "one copy")

    alluxio.mend()
    alluxio.wait(lambda: status_of(twice, "two copies").copies == 1, "the kept copy is known again")
    assert read(twice, "two copies") == CONTENT
    assert status_of(twice, "two copies").is_lost  # it stays so
    cured = twice.hasten("two copies")
    assert cured != "two copies"
    alluxio.wait(lambda: is_durable(twice, cured), "persisted")
    assert read(twice, cured) == CONTENT
    assert store.hasten("one copy") == "one copy"  # there is nothing to persist: it is to be sent again
    again = send(alluxio, store, fresh_names())
    alluxio.wait(lambda: is_durable(store, again), "persisted")


def test_a_dropped_request_to_persist_is_made_again(alluxio: Cluster, store: Store) -> None:
    alluxio.restart("master", alluxio_user_rpc_retry_max_duration="2sec")
    alluxio.wait_ready()
    dropped = "Unexpected exception encountered when scheduling the persist job"
    before = alluxio.said("master", dropped)
    alluxio.kill("job-master")
    put(store, "segment", CONTENT)
    alluxio.wait(lambda: alluxio.said("master", dropped) > before, "the request is dropped", "master")
    alluxio.restart("job-master")
    alluxio.wait_ready()
    put(store, "later", b"1")
    alluxio.wait(lambda: is_durable(store, "later"), "persisted")
    assert not status_of(store, "segment").is_durable
    cured = store.hasten("segment")
    alluxio.wait(lambda: is_durable(store, cured), "persisted")
    assert read(store, cured) == CONTENT
    assert store.stat("segment") is None


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


def test_a_proxy_without_the_rest_api_is_refused_with_the_property_to_set(alluxio: Cluster) -> None:
    alluxio.restart("proxy", alluxio_proxy_s3_v2_version_enabled="true")
    store = open_store(alluxio.url("/nothing"))

    alluxio.wait(
        lambda: alluxio.ask("POST", "proxy.web", "/api/v1/paths///exists") == (200, b""), "it answers nothing", "proxy"
    )
    for call in (store.names, store.delete, store.stat):  # of which such a proxy answers the second with "fine"
        with pytest.raises(StoreRefused, match=r"alluxio\.proxy\.s3\.v2\.version\.enabled=false"):
            call("object")
    report = check_store(store)
    assert not report.is_usable
    assert "alluxio.proxy.s3.v2.version.enabled=false" in report.findings[-1].what
