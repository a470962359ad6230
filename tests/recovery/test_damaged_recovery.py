"""Damage that recovery meets on its way: worked around, said, and not at the price of a replay each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.abandon import abandoned_copy
from tests.support.damage import tensor_span
from tests.support.record_rows import forget_records
from tests.support.toy import ToyState, ToyTrainer, open_toy, uninterrupted
from tests.support.verify import verify_run
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import RecoveryError
from tranlogs.checkpoints import Checkpoint
from tranlogs.log.layout import NO_TENSORS
from tranlogs.log.reader import Record, SegmentReader
from tranlogs.log.record_body import EncodedContent
from tranlogs.log.record_format import HEAD, RecordKind
from tranlogs.recovery.journal_facts import read_catalog, read_facts
from tranlogs.retention import EverySteps, KeepLatest
from tranlogs.verify import Problem


def open_run(run: Path, every: int = 20) -> ToyTrainer:
    return open_toy(run, config=JournalConfig(segment_bytes=16 << 20), policy=EverySteps(every), retention=KeepLatest(2))


def trained(run: Path, until: int, every: int = 20) -> Path:
    trainer = open_run(run, every)
    trainer.recover()
    for step in (*range(every, until, every), until):
        trainer.train(step)
        trainer.journal.wait_checkpoint()  # one that falls due while another is written comes later
    trainer.journal.close()
    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sound runs: of 50 steps with checkpoints at 20 and 40; of 30 and of 29 with one at the start."""
    folder = tmp_path_factory.mktemp("damaged")
    for name, until, every in (("with checkpoints", 50, 20), ("alone", 30, 1000), ("short", 29, 1000)):
        trained(folder / name, until, every)
    return folder


@pytest.fixture
def with_checkpoints(made: Path, memory_path: Path) -> Path:
    return Path(shutil.copytree(made / "with checkpoints", memory_path / "run"))


@pytest.fixture
def alone(made: Path, memory_path: Path) -> Path:
    return Path(shutil.copytree(made / "alone", memory_path / "run"))


def entries_of(run: Path) -> list[Record]:
    found = []
    for segment in read_facts(run / "rank0").segments:
        with SegmentReader(segment.path) as reader:
            found += list(reader.records(list(segment.locations)))
    return found


def boundary_arrays(run: Path) -> list[tuple[Path, int, list[int]]]:
    """Return file, step and the offsets of the body's large arrays of each boundary."""
    found = []
    for segment in read_facts(run / "rank0").segments:
        with SegmentReader(segment.path) as reader:
            for entry in reader.records(segment.locations):
                if entry.kind.is_boundary:
                    found.append((segment.path, entry.step, [row[0] for _, row in entry.arrays()]))
    return found


def invert(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def damage_state(run: Path, step: int) -> str:
    """Damage a tensor of the checkpoint of a step; returns the checkpoint's name."""
    [folder] = (run / "rank0" / "checkpoints").glob(f"step-{step:010d}-*")
    with Checkpoint(folder) as checkpoint:
        last = checkpoint.manifest["state"]["bytes"] - 1
    invert(folder / "state.safetensors", last)
    return folder.name


@pytest.fixture
def restores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of the checkpoints that were restored."""
    steps: list[int] = []
    restore = ToyState.restore

    def counted(state: ToyState, checkpoint: Checkpoint) -> None:
        steps.append(checkpoint.step)
        restore(state, checkpoint)

    monkeypatch.setattr(ToyState, "restore", counted)
    return steps


def recovered(run: Path, **options: Any) -> ToyTrainer:
    trainer = open_run(run)
    report = trainer.recover(**options)
    assert trainer.state.everything() == uninterrupted(report.step).everything()
    assert trainer.journal.step == report.step
    return trainer


def test_damaged_checkpoint_is_replaced_by_a_longer_replay(with_checkpoints: Path, restores: list[int]) -> None:
    run = with_checkpoints
    damage_state(run, 40)
    trainer = recovered(run)
    assert trainer.journal.step == 50
    assert restores == [40, 20]
    trainer.journal.close()


def test_damaged_checkpoint_no_longer_counts_as_one_that_is_kept(with_checkpoints: Path) -> None:
    run = with_checkpoints
    name = damage_state(run, 40)
    trainer = recovered(run)
    trainer.train(55)  # takes one at 51: two sound ones are kept
    trainer.journal.close()
    assert [row.step for row in read_catalog(run / "rank0").checkpoints] == [20, 51]
    assert (run / "rank0" / "checkpoints" / f"damaged-{name}").is_dir()
    damage_state(run, 51)
    trainer = recovered(run)
    assert trainer.journal.step == 55
    trainer.journal.close()


def test_landing_steps_back_over_boundaries_that_share_a_damaged_array(
    made: Path, memory_path: Path, restores: list[int]
) -> None:
    run = Path(shutil.copytree(made / "short", memory_path / "run"))
    boundaries = boundary_arrays(run)
    [shared] = {offset for _, step, offsets in boundaries if step >= 20 for offset in offsets}
    invert(boundaries[-1][0], shared + 100)
    trainer = recovered(run)
    assert trainer.journal.step == 19
    assert restores == [0, 0]  # not one for each of the ten boundaries that it steps over
    trainer.journal.close()


def test_all_landings_damaged_falls_back_to_the_checkpoint(memory_path: Path) -> None:
    run = trained(memory_path / "run", 9, every=1000)
    for path, offset in {(path, offset) for path, _, offsets in boundary_arrays(run) for offset in offsets}:
        invert(path, offset)
    trainer = recovered(run)
    assert trainer.journal.step == 0
    trainer.journal.close()


def test_steps_behind_damage_are_refused_and_stay_on_their_own_timeline(alone: Path) -> None:
    run = alone
    [entry] = [entry for entry in entries_of(run) if entry.kind.is_step and entry.step == 25]
    invert(entry.reader.path, tensor_span(entry, "grad/w2")[0])
    trainer = open_run(run)
    with pytest.raises(RecoveryError, match="step 27 is not covered: the log has no sound boundary at that step"):
        trainer.recover(step=27)
    trainer.journal.close()
    trainer = recovered(run)
    assert trainer.journal.step == 24
    assert trainer.journal.timeline == 2
    trainer.train(40)
    trainer.journal.close()
    trainer = recovered(run)
    assert trainer.journal.step == 40
    trainer.journal.close()


def test_loss_at_the_end_of_the_log_is_said_once_with_what_it_costs(alone: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = alone
    [entry] = [entry for entry in entries_of(run) if entry.kind.is_step and entry.step == 29]
    invert(entry.reader.path, tensor_span(entry, "grad/w2")[0])
    trainer = open_run(run)
    report = trainer.recover()
    assert report.step == 28
    lost = "step 30 had been committed, but the readable log ends at step 28: 2 steps have to be trained again"
    assert report.notes.count(lost) == 1
    assert sum("step 29: tensor grad/w2: the checksum of its bytes differs" in note for note in report.notes) == 1
    assert caplog.text.count("checksum") == 1, "a script that prints no report says it, too"
    trainer.journal.close()


def test_no_sound_checkpoint_is_refused_with_the_names_of_the_damaged_ones(with_checkpoints: Path) -> None:
    run = with_checkpoints
    names = [damage_state(run, 20), damage_state(run, 40)]
    trainer = open_run(run)
    with pytest.raises(RecoveryError, match=f"no sound checkpoint: 2 are damaged .*{', '.join(names)}") as refused:
        trainer.recover()
    assert all(words in str(refused.value) for words in ("`tranlogs verify`", "`tranlogs pull`", "start a new run"))
    trainer.journal.close()


def test_files_of_another_run_are_never_taken_for_this_one_s(memory_path: Path) -> None:
    """The first checkpoint of two runs has the same name, and both logs begin at the same numbers."""
    run, other = trained(memory_path / "run", 15), trained(memory_path / "other", 15)
    (mine,) = (run / "rank0" / "checkpoints").iterdir()
    (theirs,) = (other / "rank0" / "checkpoints").iterdir()
    assert mine.name == theirs.name
    shutil.copytree(run, memory_path / "sound")
    shutil.rmtree(mine)
    shutil.copytree(theirs, mine)
    assert any(mine.name in str(problem) for problem in verify_run(run) if isinstance(problem, Problem))
    with pytest.raises(RecoveryError, match="no sound checkpoint"):
        open_run(run).recover()

    sound = memory_path / "sound"
    shutil.rmtree(sound / "rank0" / "log")
    shutil.copytree(other / "rank0" / "log", sound / "rank0" / "log")
    trainer = open_run(sound)
    report = trainer.recover()
    assert report.step == 0
    assert any("step 15 had been committed" in note and "15 steps" in note for note in report.notes)
    assert trainer.state.everything() == uninterrupted(0).everything()


def test_records_that_a_power_cut_left_behind_lost_ones_are_no_damage(tmp_path: Path) -> None:
    """The disk has the first step of a later segment, and nothing of the boundary before it and behind it."""
    options: dict[str, Any] = {
        "sizes": (7, 3000, 5000),
        "config": JournalConfig(segment_bytes=1 << 20),
        "policy": EverySteps(9),
        "retention": KeepLatest(1),
    }
    trainer = open_toy(tmp_path / "run", **{**options, "policy": EverySteps(1000)})
    trainer.recover()
    trainer.train(60)
    copy = abandoned_copy(trainer.journal, tmp_path / "copy")
    trainer.journal.close()
    *_, before, last = sorted(read_facts(copy / "rank0").segments, key=lambda one: one.row.ordinal)
    first = next(one for one in last.locations if one.head.kind.is_step)
    zero(last.path, first.offset + HEAD.size)
    zero(before.path, before.locations[6].offset)
    forget_records(copy / "rank0")
    again = open_toy(copy, **options)
    landed = again.recover().step
    assert landed <= before.locations[6].head.step
    again.train(landed + 1)
    again.journal.wait_checkpoint()
    again.journal.close()
    # The checkpoint may retire all segments that supersede these two, so the second one must not outlive them.
    states = {row.ordinal: row.state for row in read_catalog(copy / "rank0").segments}
    assert states.get(last.row.ordinal, "retired") == "retired"
    assert not [finding for finding in verify_run(copy) if isinstance(finding, Problem)]


def zero(path: Path, start: int) -> None:
    """Overwrite the rest of a file with zeros."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(size - start))


def test_a_boundary_without_its_step_is_not_landed_on(tmp_path: Path) -> None:
    """No writer of ours writes one; who reads it does not trust that. Its state is not that of the steps before it."""
    trainer = open_run(tmp_path / "run")
    trainer.recover()
    trainer.train(5)
    assert trainer.journal.log.wal is not None
    log = trainer.journal.log.wal
    log.append(NO_TENSORS, EncodedContent(RecordKind.BOUNDARY, 7, log.encoder.parts({"rng": {"python": 1}}, None)))
    run = abandoned_copy(trainer.journal, tmp_path / "killed")
    trainer.journal.close()
    assert any("damaged or missing" in found.what for found in verify_run(run) if isinstance(found, Problem))
    again = open_run(run)
    report = again.recover()
    assert report.step == 5
    assert any("names step 7, which cannot follow step 5" in note for note in report.notes)
    assert again.state.everything() == uninterrupted(5).everything()
    again.train(10)
    again.journal.close()
    again = open_run(run)
    assert again.recover().step == 10
    again.journal.close()
