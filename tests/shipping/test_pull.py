"""Bringing a run back: whatever is damaged or missing in the store is named, and nothing wrong comes of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.shipping.ships import (
    archiver,
    assert_comes_back,
    drain,
    marks,
    objects_named,
    ship,
    toy,
    trained,
    trained_otherwise,
)
from tests.support.faulty_store import FaultyStore
from tests.support.toy import uninterrupted
from tranlogs.base.errors import CorruptObject, StoreUnavailable
from tranlogs.journal import JournalPaths
from tranlogs.shipping import find_run, pull
from tranlogs.shipping.fetch import fetch_missing_journal
from tranlogs.shipping.manifest import manifest_names

PLACE = "a/rank0"
Harm = Callable[[FaultyStore, str], None]


@pytest.fixture
def store(memory_path: Path) -> FaultyStore:
    """Holds the run `a` up to step 27, with checkpoints at 10 and 20."""
    made = FaultyStore()
    trained(memory_path / "a", 27)
    assert ship(memory_path / "a", made).persisted == 27
    return made


def objects_of(store: FaultyStore, what: str) -> list[str]:
    return sorted(name for name in store.objects if f"/objects/{what}" in name)


def flip(store: FaultyStore, name: str) -> None:
    data = bytearray(store.objects[name])
    data[len(data) // 2] ^= 0x10
    store.objects[name] = bytes(data)


def delete(store: FaultyStore, name: str) -> None:
    del store.objects[name]


def newest_checkpoint(store: FaultyStore) -> str:
    return next(name for name in objects_of(store, "checkpoints/step-0000000020") if "state" in name)


def newest_segment(store: FaultyStore) -> str:
    return objects_of(store, "log/")[-1]


def newest_manifest(store: FaultyStore) -> str:
    return manifest_names(store, PLACE)[0]


def test_what_recovery_needs_is_read_or_everything(store: FaultyStore, memory_path: Path) -> None:
    found = pull(store, PLACE, memory_path / "b/rank0")
    assert (found.step, found.checkpoint_step, found.steps_lost, found.notes) == (27, 20, 0, [])
    assert {path.name[:15] for path in (memory_path / "b/rank0/checkpoints").iterdir()} == {"step-0000000020"}
    assert not any("step-0000000010" in name for method, name in store.calls if method == "get")
    assert pull(store, PLACE, memory_path / "c/rank0", everything=True).step == 27
    names = {path.name[:15] for path in (memory_path / "c/rank0/checkpoints").iterdir()}
    assert names == {"step-0000000010", "step-0000000020"}
    assert_comes_back(store, PLACE, memory_path / "d", 27)


@pytest.mark.parametrize(
    ("victim", "harm"),
    [
        (newest_checkpoint, flip),
        (newest_checkpoint, delete),
        (newest_segment, flip),
        (newest_manifest, flip),
    ],
)
def test_what_is_damaged_in_the_store_is_named_and_worked_around(
    store: FaultyStore, memory_path: Path, victim: Callable[[FaultyStore], str], harm: Harm
) -> None:
    name = victim(store)
    harm(store, name)
    found = pull(store, PLACE, memory_path / "b/rank0")
    assert any(name in note for note in found.notes), found.notes
    if victim is newest_checkpoint:
        assert (found.step, found.checkpoint_step, found.steps_lost) == (27, 10, 0)
    elif victim is newest_segment:
        assert 20 <= found.step < 27
        assert found.steps_lost == 27 - found.step
    trainer = toy(memory_path / "b")
    assert trainer.journal.step == found.step
    assert trainer.state.everything() == uninterrupted(found.step).everything()
    trainer.journal.close()
    if victim is newest_manifest:
        pull(store, PLACE, memory_path / "new/a/rank0")
        trained(memory_path / "new/a", 29)
        store.url += "?replication=2"  # the same one
        assert ship(memory_path / "new/a", store).archived == 29, "it has taken the damaged one's place"


def test_without_any_checkpoint_nothing_is_brought(store: FaultyStore, memory_path: Path) -> None:
    for name in objects_of(store, "checkpoints/"):
        flip(store, name)
    with pytest.raises(CorruptObject, match="none of its checkpoints can be read"):
        pull(store, PLACE, memory_path / "b/rank0")
    assert not (memory_path / "b/rank0").exists()


def test_after_a_pull_that_lost_steps_what_follows_is_in_the_store(memory_path: Path) -> None:
    """And comes back from there, though the way over what was lost leads further still."""
    store, new = FaultyStore(), memory_path / "new/a"
    for until in (12, 22, 24, 27):  # each has segments of its own
        trained(memory_path / "a", until)
    ship(memory_path / "a", store)
    flip(store, objects_of(store, "log/")[-2])
    found = pull(store, PLACE, new / "rank0")
    assert 20 <= found.step < 26
    assert found.steps_lost == 27 - found.step
    assert marks(new).archived == found.step
    with closing(archiver(new, store)) as made:
        assert drain(made).archived == found.step, "what cannot be given back does not count"
        assert marks(new).committed == found.step
        state = trained_otherwise(new, 26)
        assert drain(made).archived == 26
    third = memory_path / "third/a"
    again = pull(store, PLACE, third / "rank0")
    assert (again.step, again.steps_lost, again.notes) == (26, 0, [])
    trainer = toy(third)
    assert trainer.state.everything() == state
    trainer.journal.close()


def test_a_folder_that_is_not_there_is_no_empty_store(memory_path: Path) -> None:
    """It may be a disk that is not mounted: a run must not begin anew because of it."""
    root = memory_path / "mounted" / "store"
    paths = JournalPaths.of(memory_path / "a")
    for ask in (lambda: fetch_missing_journal(root.as_uri(), paths), lambda: find_run(f"{root}/a")):
        with pytest.raises(StoreUnavailable, match="mount its disk, or create the folder"):
            ask()
    assert not root.parent.exists()
    root.mkdir(parents=True)
    assert fetch_missing_journal(root.as_uri(), paths) is None


def test_a_pull_that_was_broken_off_goes_on(store: FaultyStore, memory_path: Path) -> None:
    """What the attempt before left is read again only if it is not what it was."""
    newest = newest_segment(store)
    store.fails = lambda method, name: method == "get" and name == newest
    with pytest.raises(StoreUnavailable):
        pull(store, PLACE, memory_path / "b/rank0")
    assert not (memory_path / "b/rank0").exists(), "what looks like a run is one"
    store.fails = lambda method, name: False
    store.calls.clear()
    for path in (memory_path / "b/rank0.pulling/log").iterdir():
        path.write_bytes(b"x" * path.stat().st_size)
    assert_comes_back(store, PLACE, memory_path / "b", 27)
    read = [name for method, name in store.calls if method == "get" and "/objects/" in name]
    assert newest in read
    assert not any("state.safetensors" in name for name in read), "what was there is not read again"


def test_a_manifest_that_became_old_while_it_was_read_is_read_anew(store: FaultyStore, memory_path: Path) -> None:
    """The store gives up what the first manifest names, while it is being read."""
    trained(memory_path / "a", 48)
    done: list[int] = []

    def ship_meanwhile(method: str, name: str) -> bool:
        if method == "get" and "/objects/" in name and not done:
            done.append(1)
            ship(memory_path / "a", store)
        return False

    store.fails = ship_meanwhile
    found = pull(store, PLACE, memory_path / "b/rank0")
    assert (found.step, found.steps_lost) == (48, 0)


def test_a_checkpoint_that_a_pull_found_damaged_is_no_base_any_more(store: FaultyStore, memory_path: Path) -> None:
    damaged, new = newest_checkpoint(store), memory_path / "new/a"
    flip(store, damaged)
    assert pull(store, PLACE, new / "rank0").steps_lost == 0
    trained(new, 29)
    assert ship(new, store).archived == 29
    assert damaged not in objects_named(store)
    again = pull(store, PLACE, memory_path / "third/a/rank0")
    assert (again.step, again.steps_lost, again.notes) == (29, 0, [])
