"""Stores that fail, hang, forget or change what they were sent: nothing is believed without looking."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest

from tests.shipping.ships import archiver, assert_comes_back, drain, marks, ship, store_row, trained
from tests.support.faulty_store import FaultyStore
from tranlogs.shipping import archiver as archiver_module
from tranlogs.shipping import read_newest


@pytest.mark.parametrize("method", ["put", "stat", "names", "get", "delete"])
def test_a_store_that_fails_now_and_then_holds_up_nothing_for_good(memory_path: Path, method: str) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    ship(run, store)
    trained(run, 27)
    chance = random.Random(7)
    store.fails = lambda called, name: called == method and chance.random() < 0.5
    assert ship(run, store).archived == 27
    store.fails = lambda called, name: False
    assert_comes_back(store, "a/rank0", memory_path / "b", 27)


def test_memory_that_is_used_up_while_a_part_is_sent_loses_no_part(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    chance = iter(range(10**6))

    def spoil(name: str, data: bytes) -> bytes:
        if next(chance) % 3 == 0:
            raise MemoryError
        return data

    store.spoils = spoil
    assert ship(run, store).archived == 15
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_a_store_that_is_away_is_said_once_and_waited_for(memory_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.fails = lambda called, name: True
    made = archiver(run, store)
    try:
        for _ in range(10):
            made.run_once()
            made.wait(0.02)
        assert "names" in made.progress().problem
        row = store_row(run)
        assert row is not None
        assert "failed" in row.problem
        assert len([one for one in caplog.records if "cannot ship now" in one.message]) == 1
        store.fails = lambda called, name: False
        assert drain(made).archived == 5
        row = store_row(run)
        assert row is not None
        assert row.problem == ""
    finally:
        made.close()


@pytest.mark.parametrize(
    "spoiled", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""], ids=["short", "long", "empty"]
)
def test_a_store_that_keeps_another_length_is_not_believed(memory_path: Path, spoiled) -> None:  # type: ignore[no-untyped-def]
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    chance = iter(range(10**6))
    store.spoils = lambda name, data: spoiled(data) if next(chance) % 3 == 0 and data else data
    assert ship(run, store).archived == 15
    store.spoils = lambda name, data: data
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_a_store_that_forgets_what_it_took_is_sent_it_again(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    ship(run, store)
    victim = next(name for name in sorted(store.objects) if "/log/" in name)
    del store.objects[victim]
    assert ship(run, store).archived == 15
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_what_is_lost_before_it_was_durable_is_sent_again(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    store.is_durable = False
    found = ship(run, store)
    assert (found.archived, found.persisted) == (15, 0)
    store.lost = {name for name in store.objects if "/log/" in name}
    store.fails = lambda called, name: called == "put"  # nor does it take anything now
    made = archiver(run, store)
    try:
        made.run_once()
        assert marks(run).archived < 15, "what is lost does not count"
        store.fails = lambda called, name: False
        store.is_durable = True
        found = drain(made)
    finally:
        made.close()
    assert (found.archived, found.persisted) == (15, 15)
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_what_is_lost_does_not_count_although_a_manifest_is_still_to_be_published(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    store.is_durable = False
    ship(run, store)
    trained(run, 17)
    store.fails = lambda called, name: called == "put" and "/manifests/" in name
    made = archiver(run, store)
    try:
        for _ in range(10):  # what was trained since arrives, and cannot be published
            made.run_once()
            made.wait(0.02)
        assert marks(run).archived == 15
        store.lost = {name for name in store.objects if "/log/" in name}
        for _ in range(10):
            made.run_once()
            made.wait(0.02)
        assert marks(run).archived < 15
        store.fails = lambda called, name: False
        store.is_durable = True
        found = drain(made)
    finally:
        made.close()
    assert (found.archived, found.persisted) == (17, 17)
    assert_comes_back(store, "a/rank0", memory_path / "b", 17)


def test_what_is_lost_and_comes_back_counts_again(memory_path: Path) -> None:
    """Also where it is not here any more: a machine that was away brings it."""
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    store.is_durable = False
    ship(run, store)
    store.lost = {name for name in store.objects if "/log/" in name}
    for path in (run / "rank0/log").glob("*.seg"):
        path.unlink()
    before = set(store.lost)
    made = archiver(run, store)
    try:
        assert drain(made).archived < 15
    finally:
        made.close()
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    assert all(one.objects.is_lost for one in manifest.segments)
    made = archiver(run, store)  # another process
    try:
        assert drain(made).archived < 15
        store.back = before
        assert drain(made).archived == 15
        assert {name for method, name in store.calls if method == "request_durability"} == before
        assert before <= set(store.objects)
        store.is_durable = True
        assert drain(made).persisted == 15
    finally:
        made.close()
    assert_comes_back(store, "a/rank0", memory_path / "b", 15)


def test_what_is_lost_is_given_up_with_what_lies_behind_it(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 15)
    store.is_durable = False
    ship(run, store)
    store.lost = {name for name in store.objects if "/log/" in name or "step-0000000000" in name}
    for path in (run / "rank0/log").glob("*.seg"):
        path.unlink()
    shutil.rmtree(next((run / "rank0/checkpoints").glob("step-0000000000-*")))
    made = archiver(run, store)
    try:
        assert drain(made).archived == 10
        store.is_durable = True
        trained(run, 32, every=10)
        assert drain(made).persisted == 32
    finally:
        made.close()
    assert not store.lost & set(store.objects)


def test_a_request_to_persist_that_was_dropped_is_made_again(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.is_durable = False
    made = archiver(run, store, persist_seconds=0.0)
    try:
        for _ in range(100):
            made.run_once()
            made.wait(0.01)
            if hastened := {name for method, name in store.calls if method == "request_durability"}:
                break
        assert hastened <= set(store.objects)
        store.is_durable = True
        assert drain(made).persisted == 5
    finally:
        made.close()
    assert_comes_back(store, "a/rank0", memory_path / "b", 5)


def test_what_the_store_will_not_make_durable_by_itself_is_asked_for_at_once(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.is_durable = False
    ship(run, store)
    store.is_durable, store.forgotten = True, {name for name in store.objects if "/log/" in name}
    assert ship(run, store, persist_seconds=1e9).persisted == 5
    assert not store.forgotten
    assert_comes_back(store, "a/rank0", memory_path / "b", 5)


def test_a_store_that_hangs_holds_nobody(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 5)
    store.hangs.clear()
    made = archiver(run, store, stall_seconds=0.05)
    try:
        found = made.run_once()
        assert "nothing moved for 0.05 s" in found.problem
        for _ in range(20):
            made.run_once()
            made.wait(0.02)
        assert "hang" in made.progress().problem or "nothing moved" in made.progress().problem
        assert sum(thread.name == "tranlogs-store" for thread in threading.enumerate()) <= 8
        store.hangs.set()
        assert drain(made).archived == 5
    finally:
        store.hangs.set()
        made.close()


@pytest.mark.parametrize("method", ["names", "put", "stat"])
def test_an_error_of_the_program_is_recorded_and_shipping_goes_on(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 27)
    monkeypatch.setattr(archiver_module, "RETRY_SECONDS_MIN", 0.05)
    problem = threading.Event()
    call = getattr(store, method)

    def wrong(*arguments: object) -> object:
        if not problem.is_set():
            raise TypeError("a mistake")
        return call(*arguments)

    monkeypatch.setattr(store, method, wrong)
    made = archiver(run, store)
    made.start()
    try:
        while (row := store_row(run)) is None or "error in TranLogs (TypeError: a mistake)" not in row.problem:
            made.wait(0.02)
        problem.set()
        while made.progress().archived < 27:
            made.wake()
            made.wait(0.02)
        while (row := store_row(run)) is None or row.problem:
            made.wait(0.02)
    finally:
        made.close()
    assert_comes_back(store, "a/rank0", memory_path / "b", 27)
