"""Bringing a run back: whatever is damaged or missing in the store is named, and nothing wrong comes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.shipping.ships import archiver, assert_comes_back, drain, marks, ship, toy, trained, trained_otherwise
from tests.support.faulty_store import FaultyStore
from tests.support.toy import uninterrupted
from tranlogs.base.errors import CorruptObject, NotARun, StoreUnavailable, UsageError
from tranlogs.journal import JournalPaths
from tranlogs.retention.keep_policy import KeepAll
from tranlogs.shipping import find_run, pull, read_newest
from tranlogs.shipping.fetch import fetch_missing_journal
from tranlogs.shipping.manifest import manifest_names, publish
from tranlogs.stores.local import LocalStore


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


def test_only_what_recovery_needs_is_read(store: FaultyStore, memory_path: Path) -> None:
    found = pull(store, "a/rank0", memory_path / "b/rank0")
    assert (found.step, found.checkpoint_step, found.steps_lost, found.notes) == (27, 20, 0, [])
    assert {path.name for path in (memory_path / "b/rank0/checkpoints").iterdir()} == {"step-0000000020-t001-32"}
    read = {name for method, name in store.calls if method == "get"}
    assert not any("step-0000000010" in name for name in read)


def test_everything_can_be_had(store: FaultyStore, memory_path: Path) -> None:
    found = pull(store, "a/rank0", memory_path / "b/rank0", everything=True)
    assert found.step == 27
    names = {path.name[:15] for path in (memory_path / "b/rank0/checkpoints").iterdir()}
    assert names == {"step-0000000010", "step-0000000020"}
    trainer = toy(memory_path / "c")
    trainer.journal.close()
    assert_comes_back(store, "a/rank0", memory_path / "d", 27)


@pytest.mark.parametrize("harm", ["flip", "delete", "shorten"])
def test_a_damaged_checkpoint_in_the_store_is_named_and_an_older_one_used(
    store: FaultyStore, memory_path: Path, harm: str
) -> None:
    victim = next(name for name in objects_of(store, "checkpoints/step-0000000020") if "state" in name)
    if harm == "flip":
        flip(store, victim)
    elif harm == "delete":
        del store.objects[victim]
    else:
        store.objects[victim] = store.objects[victim][:-1]
    found = pull(store, "a/rank0", memory_path / "b/rank0")
    assert (found.step, found.checkpoint_step, found.steps_lost) == (27, 10, 0)
    assert any(victim in note for note in found.notes)
    trainer = toy(memory_path / "b")
    assert trainer.journal.step == 27
    assert trainer.state.everything() == uninterrupted(27).everything()
    trainer.journal.close()


def test_a_damaged_segment_in_the_store_costs_what_follows_it_and_that_is_said(store: FaultyStore, memory_path: Path) -> None:
    newest = objects_of(store, "log/")[-1]
    flip(store, newest)
    found = pull(store, "a/rank0", memory_path / "b/rank0")
    assert 20 <= found.step < 27
    assert found.steps_lost == 27 - found.step
    assert any(newest in note and "checksum" in note for note in found.notes)
    trainer = toy(memory_path / "b")
    assert trainer.journal.step == found.step
    assert trainer.state.everything() == uninterrupted(found.step).everything()
    trainer.journal.close()


def machine(memory_path: Path, name: str) -> Path:
    """Another machine's folder of the run `a`."""
    return memory_path / name / "a"


@pytest.mark.parametrize("nth", [-1, -2])
def test_after_a_pull_that_lost_steps_what_follows_is_in_the_store(memory_path: Path, nth: int) -> None:
    """And comes back from there, though the way over what was lost leads further still."""
    store, new = FaultyStore(), machine(memory_path, "new")
    for until in (12, 22, 24, 27):  # each has segments of its own
        trained(memory_path / "a", until)
    ship(memory_path / "a", store)
    flip(store, objects_of(store, "log/")[nth])
    found = pull(store, "a/rank0", new / "rank0")
    assert 20 <= found.step < 26
    assert found.steps_lost == 27 - found.step
    assert marks(new).archived == found.step
    made = archiver(new, store)
    try:
        assert drain(made).archived == found.step, "what cannot be given back does not count"
        assert marks(new).committed == found.step
        state = trained_otherwise(new, 26)
        assert drain(made).archived == 26
    finally:
        made.close()
    third = machine(memory_path, "third")
    again = pull(store, "a/rank0", third / "rank0")
    assert (again.step, again.steps_lost, again.notes) == (26, 0, [])
    trainer = toy(third)
    assert trainer.state.everything() == state
    trainer.journal.close()


def test_after_a_pull_that_met_a_damaged_checkpoint_it_is_no_base_any_more(store: FaultyStore, memory_path: Path) -> None:
    damaged = [name for name in objects_of(store, "checkpoints/step-0000000020") if "state" in name]
    flip(store, damaged[0])
    new = machine(memory_path, "new")
    assert pull(store, "a/rank0", new / "rank0").steps_lost == 0
    trained(new, 29)
    assert ship(new, store).archived == 29
    manifest, _ = read_newest(store, "a/rank0")
    assert manifest is not None
    assert damaged[0] not in {name for one in manifest.shipped.values() for name in one.names()}
    again = pull(store, "a/rank0", machine(memory_path, "third") / "rank0")
    assert (again.step, again.steps_lost, again.notes) == (29, 0, [])


def test_the_best_way_is_taken_round_what_is_damaged(store: FaultyStore, memory_path: Path) -> None:
    """Two ways lead on from one segment: the one that leads further is damaged."""
    new = machine(memory_path, "new")
    newest = objects_of(store, "log/")[-1]
    whole = store.objects[newest]
    flip(store, newest)
    landed = pull(store, "a/rank0", new / "rank0").step
    trained_otherwise(new, 26)
    before, _ = read_newest(store, "a/rank0")
    ship(new, store)
    after, _ = read_newest(store, "a/rank0")
    assert before is not None
    assert after is not None
    store.objects |= {newest: whole[:-1]}
    both = replace(after, number=after.number + 1, shipped={**before.shipped, **after.shipped})
    publish(store, "a/rank0", both)
    found = pull(store, "a/rank0", machine(memory_path, "third") / "rank0")
    assert landed < 26
    assert (found.step, found.steps_lost) == (26, 1)


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


def test_a_damaged_manifest_is_named_and_the_one_before_it_used(store: FaultyStore, memory_path: Path) -> None:
    newest = manifest_names(store, "a/rank0")[0]
    flip(store, newest)
    manifest, notes = read_newest(store, "a/rank0")
    assert manifest is not None
    assert len(notes) == 1
    assert newest in notes[0]
    found = pull(store, "a/rank0", memory_path / "b/rank0")
    assert found.step <= 27
    assert newest in found.notes[0]
    new = machine(memory_path, "new")
    pull(store, "a/rank0", new / "rank0")
    trained(new, 29)
    store.url += "?replication=2"  # the same one
    assert ship(new, store).archived == 29, "it has taken the damaged one's place"


def test_without_any_checkpoint_nothing_is_brought(store: FaultyStore, memory_path: Path) -> None:
    for name in objects_of(store, "checkpoints/"):
        flip(store, name)
    with pytest.raises(CorruptObject, match="none of its checkpoints can be read"):
        pull(store, "a/rank0", memory_path / "b/rank0")
    assert not (memory_path / "b/rank0").exists()


def test_a_pull_that_was_broken_off_goes_on(store: FaultyStore, memory_path: Path) -> None:
    names = objects_of(store, "log/")
    store.fails = lambda method, name: method == "get" and name == names[-1]
    with pytest.raises(StoreUnavailable):
        pull(store, "a/rank0", memory_path / "b/rank0")
    assert not (memory_path / "b/rank0").exists(), "what looks like a run is one"
    store.fails = lambda method, name: False
    store.calls.clear()
    assert pull(store, "a/rank0", memory_path / "b/rank0").step == 27
    read = [name for method, name in store.calls if method == "get" and "/objects/" in name]
    assert names[-1] in read
    assert not any("state.safetensors" in name for name in read), "what was there is not read again"


def test_what_an_old_attempt_left_is_not_taken_for_the_run(store: FaultyStore, memory_path: Path) -> None:
    names = objects_of(store, "log/")
    store.fails = lambda method, name: method == "get" and name == names[-1]
    with pytest.raises(StoreUnavailable):
        pull(store, "a/rank0", memory_path / "b/rank0")
    store.fails = lambda method, name: False
    for path in (memory_path / "b/rank0.pulling/log").iterdir():
        path.write_bytes(b"x" * path.stat().st_size)
    trained(memory_path / "a", 48)
    assert ship(memory_path / "a", store).archived == 48
    assert_comes_back(store, "a/rank0", memory_path / "b", 48)


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
    found = pull(store, "a/rank0", memory_path / "b/rank0")
    assert (found.step, found.steps_lost) == (48, 0)


def test_a_run_is_never_overwritten(store: FaultyStore, memory_path: Path) -> None:
    with pytest.raises(UsageError, match="exists already"):
        pull(store, "a/rank0", memory_path / "a/rank0")


def test_what_a_store_does_not_hold(memory_path: Path) -> None:
    with pytest.raises(NotARun, match="holds no journal at b/rank0"):
        pull(FaultyStore(), "b/rank0", memory_path / "b/rank0")


def test_runs_are_found_by_their_address(memory_path: Path) -> None:
    root = memory_path / "archive"
    trained(memory_path / "a", 3)
    ship(memory_path / "a", LocalStore(root))
    assert find_run(f"{root}/a") == (str(root), ["a/rank0"])
    assert find_run(root.as_uri() + "/a/") == (root.as_uri(), ["a/rank0"])
    assert find_run(str(root)) == (str(root), ["a/rank0"]), "the folder around it, since there is one run"
    trained(memory_path / "b", 3)
    ship(memory_path / "b", LocalStore(root))
    with pytest.raises(UsageError, match="several runs"):
        find_run(str(root))
    with pytest.raises(UsageError, match="holds no run at this address"):
        find_run(f"{root}/c")


def test_a_run_that_was_wound_back_comes_back_on_its_newest_timeline(memory_path: Path) -> None:
    run, store = memory_path / "a", FaultyStore()
    trained(run, 27)
    ship(run, store, keep=KeepAll())
    trainer = toy(run, every=100)
    trainer.journal.close()
    from tests.support.toy import open_toy
    from tranlogs.base.config import MIB, JournalConfig
    from tranlogs.retention import EverySteps

    trainer = open_toy(run, config=JournalConfig(durability="process", segment_bytes=2 * MIB), policy=EverySteps(100))
    trainer.recover(step=22)
    trainer.state.lr *= 2  # another history from here on
    trainer.train(31)
    expected = trainer.state.everything()
    trainer.journal.close()
    assert ship(run, store, keep=KeepAll()).archived == 31
    found = pull(store, "a/rank0", memory_path / "b/rank0")
    assert (found.step, found.steps_lost) == (31, 0)
    again = toy(memory_path / "b", every=100)
    assert again.journal.step == 31
    assert again.state.everything() == expected
    again.journal.close()
