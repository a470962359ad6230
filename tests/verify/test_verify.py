"""`verify` names what is damaged or missing, by file, step and tensor, and nothing else; recovery works around it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.damage import tensor_span
from tests.support.toy import ToyState, ToyTrainer, open_toy, uninterrupted
from tests.support.verify import problems_of, verify_run
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import RecoveryError
from tranlogs.checkpoints import Checkpoint
from tranlogs.log.reader import Record, SegmentReader
from tranlogs.log.record_format import HEAD, Location
from tranlogs.recovery.journal_facts import read_catalog, read_facts
from tranlogs.retention import EverySteps, KeepLatest
from tranlogs.verify import Checked, Problem

SIZES = (7, 3000, 40_000)


def open_run(run: Path, **options: Any) -> ToyTrainer:
    policy, config = options.pop("policy", EverySteps(20)), JournalConfig(**{"segment_bytes": 1 << 20, **options})
    return open_toy(run, sizes=SIZES, config=config, policy=policy, retention=KeepLatest(2))


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A run of 66 steps with checkpoints at 40 and 60 and several segments, ended in order.

    It is made in memory: on a slow disk the checkpoint of step 40 may still be written when the next one is due.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        trainer = open_run(Path(folder, "run"))
        trainer.recover()
        trainer.train(66)
        trainer.journal.close()
        yield Path(folder, "run")


@pytest.fixture
def run(made: Path, memory_path: Path) -> Path:
    return Path(shutil.copytree(made, memory_path / "run"))


def recovered_step(run: Path) -> int:
    trainer = open_run(run)
    try:
        return trainer.recover().step
    finally:
        trainer.journal.close()


def entry_of(run: Path, step: int, *, of_boundary: bool = False) -> tuple[Path, Location, Record]:
    for segment in read_facts(run / "rank0").segments:
        with SegmentReader(segment.path) as reader:
            for location in segment.locations:
                entry = reader.decode(location)
                if (entry.kind.is_boundary if of_boundary else entry.kind.is_step) and entry.step == step:
                    return segment.path, location, entry
    raise LookupError(step)


def overwrite(path: Path, offset: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def invert(path: Path, offset: int) -> None:
    overwrite(path, offset, bytes([path.read_bytes()[offset] ^ 0xFF]))


def test_sound_run_has_no_problem(run: Path) -> None:
    findings = list(verify_run(run))
    assert not [finding for finding in findings if isinstance(finding, Problem)]
    checked = [finding for finding in findings if isinstance(finding, Checked)]
    links = [location for segment in read_facts(run / "rank0").segments for location in segment.locations[1:]]
    assert sum(finding.records for finding in checked) == len(links)
    states = [path.stat().st_size for path in (run / "rank0" / "checkpoints").glob("*/*") if path.suffix != ".json"]
    assert sum(finding.nbytes for finding in checked if "checkpoints" in finding.path.parts) == sum(states)


def test_damaged_tensor_is_named_with_file_step_and_name(run: Path) -> None:
    path, _, entry = entry_of(run, 61)
    invert(path, tensor_span(entry, "grad/w2")[0] + 1000)
    [problem] = problems_of(run)
    assert (problem.path, problem.step, problem.tensor) == (path, 61, "grad/w2")
    assert str(problem) == f"{path}: step 61: tensor grad/w2: the checksum of its bytes differs"


@pytest.mark.parametrize(
    ("step", "of_boundary", "where", "what"),
    [
        (61, False, "description", ["the checksum of its description differs"]),
        (62, False, "head", ["record {} is damaged or missing"]),
        (66, True, "head", ["", "it ends at step 65, but step 66 had been committed"]),
    ],
)
def test_damaged_record_is_named_with_its_step(run: Path, step: int, of_boundary: bool, where: str, what: list[str]) -> None:
    path, location, _ = entry_of(run, step, of_boundary=of_boundary)
    if where == "head":
        overwrite(path, location.offset, bytes(HEAD.size))
    else:
        invert(path, location.description_offset + 5)
    problems = problems_of(run)
    assert (problems[0].path, problems[0].step) in ((path, step), (path, None))
    for problem, words in zip(problems, what, strict=False):
        assert words.format(location.head.sequence) in problem.what


@pytest.mark.parametrize("part", ["state/w2", "header", "meta.bin", "manifest.json"])
def test_each_part_of_a_checkpoint_is_named(run: Path, part: str) -> None:
    folder = max((run / "rank0" / "checkpoints").iterdir())
    file = folder / (part if "." in part else "state.safetensors")
    at = 40
    if "/" in part:
        raw = file.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        with Checkpoint(folder) as checkpoint:
            at = start + checkpoint.manifest["tensors"][part]["offset"] + 3
    invert(file, at)
    [problem] = problems_of(run)
    assert problem.path == file
    assert problem.tensor == (part if "/" in part else None)
    assert problem.step == 60


def test_abandoned_entries_are_no_problem(run: Path) -> None:
    path, location, _ = entry_of(run, 64)
    trainer = open_run(run)
    trainer.recover(step=62)
    trainer.train(63)
    trainer.journal.close()
    overwrite(path, location.offset, b"\0" * HEAD.size)
    assert not problems_of(run)


def test_unreadable_sector_is_named_and_the_rest_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, entry = entry_of(run, 66)
    page = tensor_span(entry, "grad/w2")[0] // 4096 * 4096
    bad = range(page + 4096, page + 8192)

    def failing(read: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: int, what: Any, offset: int) -> Any:
            size = what if isinstance(what, int) else what[0].nbytes
            is_hit = offset < bad.stop and offset + size > bad.start
            if is_hit and os.readlink(f"/proc/self/fd/{fd}") == str(path):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(fd, what, offset)

        return call

    monkeypatch.setattr(os, "pread", failing(os.pread))
    monkeypatch.setattr(os, "preadv", failing(os.preadv))
    [problem] = problems_of(run)
    assert (problem.path, problem.step, problem.tensor) == (path, 66, "grad/w2")
    assert problem.what == "it cannot be read (Input/output error)"
    assert recovered_step(run) == 65


# Recovery works around it, says so, and not at the price of a replay each.


@pytest.fixture
def restores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of the checkpoints that were restored."""
    steps, restore = list[int](), ToyState.restore

    def counted(state: ToyState, checkpoint: Checkpoint) -> None:
        steps.append(checkpoint.step)
        restore(state, checkpoint)

    monkeypatch.setattr(ToyState, "restore", counted)
    return steps


def damage_state(run: Path, step: int) -> str:
    """Damage a tensor of the checkpoint of a step; returns the checkpoint's name."""
    [folder] = (run / "rank0" / "checkpoints").glob(f"step-{step:010d}-*")
    with Checkpoint(folder) as checkpoint:
        invert(folder / "state.safetensors", checkpoint.manifest["state"]["bytes"] - 1)
    return folder.name


def recovered(run: Path, step: int, **options: Any) -> ToyTrainer:
    trainer = open_run(run, **options)
    assert trainer.recover().step == trainer.journal.step == step
    assert trainer.state.everything() == uninterrupted(step).everything()
    return trainer


def test_damaged_checkpoint_is_replaced_by_a_longer_replay_and_is_not_one_that_is_kept(run: Path, restores: list[int]) -> None:
    name = damage_state(run, 60)
    trainer = recovered(run, 66)
    assert restores == [60, 40]
    trainer.train(70)  # takes one at 67: two sound ones are kept
    trainer.journal.close()
    assert [row.step for row in read_catalog(run / "rank0").checkpoints] == [40, 67]
    assert (run / "rank0" / "checkpoints" / f"damaged-{name}").is_dir()
    damage_state(run, 67)
    recovered(run, 70).journal.close()


def test_no_sound_checkpoint_is_refused_with_the_names_of_the_damaged_ones(run: Path) -> None:
    names = [damage_state(run, 40), damage_state(run, 60)]
    trainer = open_run(run)
    with pytest.raises(RecoveryError, match=f"no sound checkpoint: 2 are damaged .*{', '.join(names)}") as refused:
        trainer.recover()
    assert all(words in str(refused.value) for words in ("`tranlogs verify`", "`tranlogs pull`", "start a new run"))
    trainer.journal.close()


def test_loss_at_the_end_of_the_log_is_said_once_with_what_it_costs(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, _, entry = entry_of(run, 65)
    invert(path, tensor_span(entry, "grad/w2")[0])
    trainer = open_run(run)
    report = trainer.recover()
    assert report.step == 64
    lost = "step 66 had been committed, but the readable log ends at step 64: 2 steps have to be trained again"
    assert report.notes.count(lost) == 1
    assert sum("step 65: tensor grad/w2: the checksum of its bytes differs" in note for note in report.notes) == 1
    assert caplog.text.count("checksum") == 1, "a script that prints no report says it, too"
    trainer.journal.close()


def test_landing_steps_back_over_boundaries_that_share_a_damaged_array(memory_path: Path, restores: list[int]) -> None:
    run, options = memory_path / "run", {"segment_bytes": 16 << 20, "policy": EverySteps(1000)}
    trainer = recovered(run, 0, **options)
    trainer.train(29)
    trainer.journal.close()
    path, location, _ = entry_of(run, 29, of_boundary=True)
    with SegmentReader(path) as reader:
        [(_, (shared, *_))] = reader.decode(location).arrays()
    invert(path, shared + 100)
    recovered(run, 19, **options).journal.close()
    assert restores == [0, 0]  # not one for each of the ten boundaries that it steps over


def test_the_log_of_another_run_is_never_taken_for_this_one_s(memory_path: Path, run: Path) -> None:
    """Both begin at the same numbers."""
    other = memory_path / "other"
    trainer = open_run(other)
    trainer.recover()
    trainer.train(15)
    trainer.journal.close()
    shutil.rmtree(other / "rank0" / "log")
    shutil.copytree(run / "rank0" / "log", other / "rank0" / "log")
    trainer = open_run(other)
    report = trainer.recover()
    assert report.step == 0
    assert any("step 15 had been committed" in note and "15 steps" in note for note in report.notes)
    trainer.journal.close()
