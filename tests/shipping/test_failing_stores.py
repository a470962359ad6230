"""Stores that fail, hang, forget, lose or change what they were sent: nothing is believed without looking."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.shipping.ships import archiver, assert_comes_back, drain, marks, ship, store_row, trained
from tests.support.faulty_store import FaultyStore
from tranlogs.shipping import read_newest


def fails(method: str) -> Callable[[FaultyStore], None]:
    """Half of the calls of a method fail."""

    def harm(store: FaultyStore) -> None:
        chance = random.Random(7)
        store.fails = lambda called, name: called == method and chance.random() < 0.5

    return harm


def spoils(change: Callable[[bytes], bytes]) -> Callable[[FaultyStore], None]:
    """Each third object is kept otherwise than it was sent."""

    def harm(store: FaultyStore) -> None:
        number = itertools.count()
        store.spoils = lambda name, data: change(data) if next(number) % 3 == 0 and data else data

    return harm


def uses_up_memory(data: bytes) -> bytes:
    raise MemoryError


def forgets_an_object(store: FaultyStore) -> None:
    del store.objects[next(name for name in sorted(store.objects) if "/log/" in name)]


HARMS = {
    **{f"{method} fails": fails(method) for method in ("put", "stat", "names", "get", "delete")},
    "keeps less": spoils(lambda data: data[:-1]),
    "keeps more": spoils(lambda data: data + b"x"),
    "keeps nothing": spoils(lambda data: b""),
    "memory is used up": spoils(uses_up_memory),
    "forgets an object": forgets_an_object,
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_archived_comes_back_whatever_the_store_does(memory_path: Path, harm: str) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    ship(run, store)
    trained(run, 27)
    HARMS[harm](store)
    assert ship(run, store).archived == 27
    store.fails = lambda called, name: False
    assert_comes_back(store, "a/rank0", memory_path / "b", 27)


def test_a_store_that_forgets_everything_is_sent_it_again_by_the_process_that_knows_it(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 12)
    with closing(archiver(run, store)) as made:
        drain(made)
        store.objects.clear()
        trained(run, 25)
        assert drain(made).archived == 25
    assert_comes_back(store, "a/rank0", memory_path / "b", 25)


def test_a_store_that_is_away_is_said_once_and_waited_for(memory_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.fails = lambda called, name: True
    with closing(archiver(run, store)) as made:
        for _ in range(10):
            made.run_once()
            made.wait(0.02)
        row = store_row(run)
        assert row is not None
        assert "names" in made.progress().problem
        assert "failed" in row.problem
        assert len([one for one in caplog.records if "cannot ship now" in one.message]) == 1
        store.fails = lambda called, name: False
        assert drain(made).archived == 5
        row = store_row(run)
        assert row is not None
        assert row.problem == ""


def test_a_store_that_hangs_holds_nobody(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.hangs.clear()
    with closing(archiver(run, store, stall_seconds=0.05)) as made:
        try:
            assert "nothing moved for 0.05 s" in made.run_once().problem
            for _ in range(20):
                made.run_once()
                made.wait(0.02)
            assert sum(thread.name == "tranlogs-store" for thread in threading.enumerate()) <= 8
            store.hangs.set()
            assert drain(made).archived == 5
        finally:
            store.hangs.set()


def test_an_error_of_the_program_is_recorded_and_shipping_goes_on(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    is_mended, put = threading.Event(), store.put

    def wrong(*arguments: object) -> object:
        if not is_mended.is_set():
            raise TypeError("a mistake")
        return put(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "put", wrong)
    with closing(archiver(run, store)) as made:
        made.start()
        while (row := store_row(run)) is None or "error in TranLogs (TypeError: a mistake)" not in row.problem:
            made.wait(0.02)
        is_mended.set()
        while made.progress().archived < 15:
            made.wake()
            made.wait(0.02)
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


# What is lost before it is durable.


def lose_log(run: Path) -> None:
    """Nothing is here any more that could be sent again."""
    for path in (run / "rank0/log").glob("*.seg"):
        path.unlink()


@pytest.fixture
def volatile(memory_path: Path) -> FaultyStore:
    """A store that has the run `a` up to step 15, and nothing of it for good."""
    store = FaultyStore()
    store.is_durable = False
    trained(memory_path / "a", 15)
    found = ship(memory_path / "a", store)
    assert (found.archived, found.persisted) == (15, 0)
    return store


@pytest.mark.parametrize("is_behind", [False, True])
def test_what_is_lost_does_not_count_and_is_sent_again(memory_path: Path, volatile: FaultyStore, is_behind: bool) -> None:
    """Also while a manifest of what came since is still to be published."""
    run, store = memory_path / "a", volatile
    if is_behind:
        trained(run, 17)
    store.fails = lambda called, name: called == "put" and ("/manifests/" in name or not is_behind)
    with closing(archiver(run, store)) as made:
        for _ in range(10 * is_behind):  # what was trained since arrives, and cannot be published
            made.run_once()
            made.wait(0.02)
        assert marks(run).archived == 15
        store.lost = {name for name in store.objects if "/log/" in name}
        for _ in range(1 + 10 * is_behind):
            made.run_once()
            made.wait(0.02)
        assert marks(run).archived < 15
        store.fails = lambda called, name: False
        store.is_durable = True
        found = drain(made)
    assert found.archived == found.persisted == (17 if is_behind else 15)
    assert_comes_back(store, "a/rank0", memory_path / "b", found.archived)


def test_what_is_lost_and_comes_back_counts_again(memory_path: Path, volatile: FaultyStore) -> None:
    """Also where it is not here any more: a machine that was away brings it."""
    run, store = memory_path / "a", volatile
    before = {name for name in store.objects if "/log/" in name}
    store.lost = set(before)
    lose_log(run)
    assert ship(run, store).archived < 15
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    assert all(one.is_lost for one in manifest.segments)
    with closing(archiver(run, store)) as made:  # another process
        assert drain(made).archived < 15
        store.back = before
        assert drain(made).archived == 15
        assert {name for method, name in store.calls if method == "request_durability"} == before
        store.is_durable = True
        assert drain(made).persisted == 15
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_what_is_lost_is_given_up_with_what_lies_behind_it(memory_path: Path, volatile: FaultyStore) -> None:
    run, store = memory_path / "a", volatile
    store.lost = {name for name in store.objects if "/log/" in name or "step-0000000000" in name}
    lose_log(run)
    shutil.rmtree(next((run / "rank0/checkpoints").glob("step-0000000000-*")))
    with closing(archiver(run, store)) as made:
        assert drain(made).archived == 10
        store.is_durable = True
        trained(run, 32, every=10)
        assert drain(made).persisted == 32
    assert not store.lost & set(store.objects)


def test_a_request_to_persist_that_was_dropped_is_made_again(memory_path: Path, volatile: FaultyStore) -> None:
    with closing(archiver(memory_path / "a", volatile, persist_seconds=0.0)) as made:
        for _ in range(100):
            made.run_once()
            made.wait(0.01)
            if any(method == "request_durability" for method, _ in volatile.calls):
                break
        else:
            raise AssertionError("it was not asked for again")
        volatile.is_durable = True
        assert drain(made).persisted == 15


def test_what_the_store_will_not_make_durable_by_itself_is_asked_for_at_once(memory_path: Path, volatile: FaultyStore) -> None:
    volatile.is_durable, volatile.forgotten = True, {name for name in volatile.objects if "/log/" in name}
    assert ship(memory_path / "a", volatile, persist_seconds=1e9).persisted == 15
    assert not volatile.forgotten
