"""Damage in a journal that is shipped: the store's copy takes its place, and no step is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shipping.ships import open_only, ship, trained
from tests.support.record_rows import forget_records
from tests.support.toy import ToyTrainer, uninterrupted
from tests.support.verify import verify_run
from tranlogs.base.config import MIB
from tranlogs.base.errors import StoreUnavailable
from tranlogs.checkpoints import Checkpoint
from tranlogs.journal import JournalPaths
from tranlogs.log.reader import SegmentReader
from tranlogs.recovery.journal_facts import read_facts
from tranlogs.retention.keep_policy import KeepAll
from tranlogs.shipping import StoreCopies
from tranlogs.stores.local import LocalStore
from tranlogs.verify import Problem

STEPS = 27


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "store").mkdir()
    return LocalStore(tmp_path / "store")


@pytest.fixture
def run(memory_path: Path, store: LocalStore) -> Path:
    """Closed at step 27, with checkpoints at 0, 10 and 20; all of it is in the store."""
    trained(memory_path / "a", STEPS, retention=KeepAll())
    assert ship(memory_path / "a", store, keep=KeepAll()).persisted == STEPS
    return memory_path / "a"


def problems(run: Path) -> list[Problem]:
    return [one for one in verify_run(run) if isinstance(one, Problem)]


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
        step = next(entry for entry in reader.entries(list(segment.locations)) if entry.raw_bytes and entry.step == STEPS)
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


def shorten_segment(run: Path) -> str:
    path = last_segment(run)
    with path.open("r+b") as file:
        file.truncate(100_000)
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


@pytest.mark.parametrize(
    "harm",
    [harm_values, harm_heads, lose_segment, shorten_segment, harm_checkpoints, lose_checkpoint],
    ids=lambda f: f.__name__,
)
def test_no_step_is_lost_to_damage(run: Path, store: LocalStore, harm: Callable[[Path], str]) -> None:
    name = harm(run)
    assert problems(run)
    trainer, notes = recovered(run)  # the catalog knows the store
    assert trainer.journal.step == STEPS
    assert any(name in note and store.url in note for note in notes), notes
    trainer.train(30)
    assert trainer.state.everything() == uninterrupted(30).everything()
    trainer.journal.close()
    left = [str(one) for one in problems(run)]
    assert not [text for text in left if name in text], left


def test_heads_that_the_index_has_need_no_copy(run: Path, store: LocalStore) -> None:
    harm_heads_alone(run)
    assert problems(run)
    trainer, notes = recovered(run)
    assert (trainer.journal.step, notes) == (STEPS, ())
    trainer.journal.close()


def test_without_a_copy_it_is_worked_around(run: Path, store: LocalStore) -> None:
    name = harm_values(run)
    for path in Path(str(store.url).removeprefix("file://")).rglob(f"*{name}*"):
        path.write_bytes(b"nothing")
    trainer, notes = recovered(run)
    assert trainer.journal.step == STEPS - 1
    assert any(name in note and "checksum" in note for note in notes), notes
    trainer.journal.close()


def test_a_store_that_is_gone_does_no_harm(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = harm_values(run)
    shutil.rmtree(tmp_path / "store")
    trainer, _ = recovered(run)
    assert trainer.journal.step == STEPS - 1
    assert any(name in text and "no copy" in text for text in caplog.messages), caplog.messages
    trainer.journal.close()


def test_what_another_run_has_there_is_not_taken(run: Path, memory_path: Path, store: LocalStore, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    trained(other / "a", 5)
    (tmp_path / "elsewhere").mkdir()
    elsewhere = LocalStore(tmp_path / "elsewhere")
    ship(other / "a", elsewhere)
    harm_values(run)
    trainer, _ = recovered(run, elsewhere.url)
    assert trainer.journal.step == STEPS - 1
    trainer.journal.close()


def test_a_sound_run_asks_no_store(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str) -> None:
        raise AssertionError(f"{url} was opened")

    monkeypatch.setattr("tranlogs.shipping.fetch.open_store", refuse)
    trainer, notes = recovered(run)
    assert (trainer.journal.step, notes) == (STEPS, ())
    trainer.journal.close()


def test_the_copy_of_a_shorter_past_is_not_taken(memory_path: Path, store: LocalStore, tmp_path: Path) -> None:
    """A copy of the folder of a running trainer was shipped: its segment of the same name ends earlier."""
    run = memory_path / "a"
    trainer = open_only(run, segment_bytes=64 * MIB, every=100)
    trainer.recover()
    trainer.train(9)
    copy = tmp_path / "copy" / "a"
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


def test_a_store_that_fails_once_is_asked_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([StoreUnavailable("file://", "it is away")])
    names = LocalStore.names

    def failing_once(store: LocalStore, prefix: str) -> list[str]:
        for failure in failures:
            raise failure
        return names(store, prefix)

    monkeypatch.setattr(LocalStore, "names", failing_once)
    monkeypatch.setattr("tranlogs.shipping.fetch._PAUSES", (0.0, 0.0, 0.0))
    harm_values(run)
    trainer, _ = recovered(run)
    assert trainer.journal.step == STEPS
    trainer.journal.close()


def test_a_store_that_stays_away_is_given_up_for_all(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def failing(store: LocalStore, prefix: str) -> list[str]:
        asked.append(prefix)
        raise StoreUnavailable(store.url, "it is away")

    monkeypatch.setattr(LocalStore, "names", failing)
    monkeypatch.setattr("tranlogs.shipping.fetch._PAUSES", (0.0, 0.0, 0.0))
    harm_checkpoints(run)
    harm_values(run)
    trainer, _ = recovered(run)
    assert trainer.journal.step == STEPS - 1
    assert len(asked) == 3
    trainer.journal.close()


def test_a_copy_that_cannot_be_read_leaves_no_empty_checkpoint(run: Path, tmp_path: Path) -> None:
    name = lose_checkpoint(run)
    for path in (tmp_path / "store").rglob("objects/**/*"):
        if path.is_file() and name in str(path):
            path.write_bytes(b"nothing")
    assert not StoreCopies(JournalPaths.of(run)).replace(name)
    assert not (run / "rank0/checkpoints" / name).exists()


def test_a_segment_that_lost_only_what_it_did_not_use_is_whole_again(run: Path) -> None:
    path = last_segment(run)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 4096)
    assert problems(run)
    assert StoreCopies(JournalPaths.of(run)).replace(path.name)
    assert path.stat().st_size == size
    assert not problems(run)


def test_a_name_is_asked_for_once(run: Path) -> None:
    spare, name = StoreCopies(JournalPaths.of(run)), harm_values(run)
    assert spare.replace(name)
    harm_values(run)
    assert not spare.replace(name)
