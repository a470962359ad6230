"""Damage in a journal that is shipped: the store's copy takes its place, and no step is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shipping.ships import open_only, ship, trained
from tests.support.record_rows import forget_records
from tests.support.toy import ToyTrainer, uninterrupted
from tests.support.verify import problems_of
from tranlogs.base.config import MIB
from tranlogs.base.errors import StoreUnavailable
from tranlogs.checkpoints import Checkpoint
from tranlogs.journal import JournalPaths
from tranlogs.log.reader import SegmentReader
from tranlogs.recovery.journal_facts import read_facts
from tranlogs.retention.keep_policy import KeepAll
from tranlogs.shipping import StoreCopies
from tranlogs.stores.local import LocalStore

STEPS = 27


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run `a`, closed at step 27, with checkpoints at 0, 10 and 20; all of it is in the store beside it."""
    folder = tmp_path_factory.mktemp("spare")
    (folder / "store").mkdir()
    trained(folder / "a", STEPS, retention=KeepAll())
    assert ship(folder / "a", LocalStore(folder / "store"), keep=KeepAll()).persisted == STEPS
    return folder


@pytest.fixture
def store(made: Path) -> LocalStore:
    return LocalStore(made / "store")


@pytest.fixture
def run(made: Path, memory_path: Path) -> Path:
    return Path(shutil.copytree(made / "a", memory_path / "a"))


def invert(path: Path, offset: int, nbytes: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        data = file.read(nbytes)
        file.seek(offset)
        file.write(bytes(byte ^ 0xFF for byte in data))


def last_segment(run: Path) -> Path:
    return max((one for one in read_facts(run / "rank0").segments), key=lambda one: one.row.last_sequence).path


def checkpoint_of(run: Path, step: int) -> Path:
    [folder] = (run / "rank0/checkpoints").glob(f"step-{step:010d}-*")
    return folder


def harm_values(run: Path) -> str:
    path = last_segment(run)
    with SegmentReader(path) as reader:
        [segment] = [one for one in read_facts(run / "rank0").segments if one.path == path]
        step = next(entry for entry in reader.records(list(segment.locations)) if entry.raw_bytes and entry.step == STEPS)
        invert(path, step.location.payload_offset + step.stored_bytes - 1)
    return path.name


def harm_heads(run: Path) -> str:
    """And the rows of the catalog, which have a copy of them."""
    name = harm_heads_alone(run)
    forget_records(run / "rank0")
    return name


def harm_heads_alone(run: Path) -> str:
    path = last_segment(run)
    [segment] = [one for one in read_facts(run / "rank0").segments if one.path == path]
    for location in segment.locations:
        invert(path, location.offset, 64)
    return path.name


def lose_segment(run: Path) -> str:
    path = last_segment(run)
    path.unlink()
    return path.name


def harm_checkpoints(run: Path) -> str:
    """All but the first: without a copy the whole run would be redone."""
    for step in (10, 20):
        folder = checkpoint_of(run, step)
        with Checkpoint(folder) as checkpoint:
            last = checkpoint.manifest["state"]["bytes"] - 1
        invert(folder / "state.safetensors", last)
    return checkpoint_of(run, 20).name


def lose_checkpoint(run: Path) -> str:
    folder = checkpoint_of(run, 20)
    shutil.rmtree(folder)
    return folder.name


def recovered(run: Path, url: str | None = None) -> tuple[ToyTrainer, tuple[str, ...]]:
    trainer = open_only(run, retention=KeepAll())
    report = trainer.recover(spare=StoreCopies(JournalPaths.of(run), url))
    assert trainer.state.everything() == uninterrupted(report.step).everything()
    return trainer, report.notes


@pytest.mark.parametrize("harm", [harm_values, harm_heads, lose_segment, harm_checkpoints, lose_checkpoint])
def test_no_step_is_lost_to_damage(run: Path, store: LocalStore, harm: Callable[[Path], str]) -> None:
    name = harm(run)
    assert problems_of(run)
    trainer, notes = recovered(run)  # the catalog knows the store
    assert trainer.journal.step == STEPS
    assert any(name in note and store.url in note for note in notes), notes
    trainer.train(30)
    assert trainer.state.everything() == uninterrupted(30).everything()
    trainer.journal.close()
    left = [str(one) for one in problems_of(run)]
    assert not [text for text in left if name in text], left


@pytest.mark.parametrize("harm", [lambda run: "", harm_heads_alone], ids=["sound", "the index has the heads"])
def test_a_run_that_needs_no_copy_asks_no_store(
    run: Path, harm: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(url: str) -> None:
        raise AssertionError(f"{url} was opened")

    monkeypatch.setattr("tranlogs.shipping.fetch.open_store", refuse)
    assert bool(harm(run)) == bool(problems_of(run))
    trainer, notes = recovered(run)
    assert (trainer.journal.step, notes) == (STEPS, ())
    trainer.journal.close()


def damaged_there(store: Path, name: str) -> str:
    for path in store.rglob("objects/**/*"):
        if path.is_file():
            path.write_bytes(b"nothing")
    return store.as_uri()


def gone(store: Path, name: str) -> str:
    shutil.rmtree(store)
    return store.as_uri()


def of_another_run(store: Path, name: str) -> str:
    trained(store.parent / "other/a", 5)
    shutil.rmtree(store)
    store.mkdir()
    ship(store.parent / "other/a", LocalStore(store))
    return store.as_uri()


@pytest.mark.parametrize(
    ("make", "said"),
    [(damaged_there, "cannot fetch a copy"), (gone, "no copy"), (of_another_run, "no copy")],
)
def test_without_a_copy_it_is_worked_around(
    made: Path, run: Path, make: Callable[[Path, str], str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, lost = harm_values(run), lose_checkpoint(run)
    trainer, notes = recovered(run, make(Path(shutil.copytree(made / "store", run.with_name("store"))), name))
    assert trainer.journal.step == STEPS - 1
    assert any(name in note and "checksum" in note for note in notes), notes
    assert any(name in text and said in text for text in caplog.messages), caplog.messages
    assert not (run / "rank0/checkpoints" / lost).exists(), "not even an empty one"
    trainer.journal.close()


@pytest.mark.parametrize(("failures", "step"), [(1, STEPS), (10**9, STEPS - 1)], ids=["once", "always"])
def test_a_store_that_fails_is_asked_again_some_times(
    run: Path, monkeypatch: pytest.MonkeyPatch, failures: int, step: int
) -> None:
    asked, names = list[str](), LocalStore.names

    def failing(store: LocalStore, prefix: str) -> list[str]:
        asked.append(prefix)
        if len(asked) <= failures:
            raise StoreUnavailable(store.url, "it is away")
        return names(store, prefix)

    monkeypatch.setattr(LocalStore, "names", failing)
    monkeypatch.setattr("tranlogs.shipping.fetch._PAUSES", (0.0, 0.0, 0.0))
    harm_checkpoints(run)
    harm_values(run)
    trainer, _ = recovered(run)
    assert trainer.journal.step == step
    assert failures == 1 or len(asked) == 3, "and given up for all"
    trainer.journal.close()


def test_the_copy_of_a_shorter_past_is_not_taken(memory_path: Path) -> None:
    """A copy of the folder of a running trainer was shipped: its segment of the same name ends earlier."""
    run, copy, store = memory_path / "a", memory_path / "copy/a", LocalStore(memory_path / "store")
    trainer = open_only(run, segment_bytes=64 * MIB, every=100)
    trainer.recover()
    trainer.train(9)
    shutil.copytree(run, copy)
    elsewhere = open_only(copy, segment_bytes=64 * MIB, every=100)
    elsewhere.recover()
    elsewhere.train(10)  # what was copied is sealed as it is
    elsewhere.journal.close()
    assert ship(copy, store).archived == 10
    trainer.train(STEPS)
    trainer.journal.close()
    harm_values(run)
    again, _ = recovered(run, store.url)
    assert again.journal.step == STEPS - 1
    again.journal.close()
