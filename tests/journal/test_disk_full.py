"""A disk that is really full, at any byte: training goes on, no signal, and logging resumes by itself when there is space."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import campaign, disks
from tests.support.clock import FakeClock
from tests.support.disks import fill, free_bytes
from tests.support.toy import ToyTrainer, uninterrupted
from tests.support.toy_steps import NEVER, SIZES
from tranlogs.base.config import MIB
from tranlogs.base.errors import UsageError
from tranlogs.log import preallocator
from tranlogs.retention import EverySteps, KeepAll, KeepLatest, RetentionPolicy

pytestmark = [pytest.mark.disks, pytest.mark.usefixtures("small_segments")]


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(memory_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of 48 MiB. The image of the ext4 lies in memory: a full disk need not be a slow one."""
    point, size, image = memory_path / "disk", 48 * MIB, memory_path / "disk.img"
    with disks.memory_disk(point, size) if request.param == "tmpfs" else disks.mounted(disks.make_ext4(image, size), point):
        yield point


@pytest.fixture
def toy(disk: Path, clock: FakeClock, toy: Callable[..., ToyTrainer]) -> Callable[..., ToyTrainer]:
    options = {"durability": "machine", "policy": EverySteps(6), "retention": KeepLatest(1), "clock": clock}
    return lambda **more: toy(disk / "run", **options | more)


@pytest.fixture
def plenty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log take this small disk for one with plenty of space, or for one without."""
    if request.param == "plenty":
        monkeypatch.setattr(preallocator, "SPACE_PLENTY_BYTES", -1 << 60)


def state_at(step: int, sizes: tuple[int, ...] = SIZES) -> bytes:
    return uninterrupted(step, sizes=sizes).everything()


def roll(trainer: ToyTrainer) -> None:
    trainer.journal.wait_synced()
    trainer.journal.wait_checkpoint()
    if trainer.journal.log.wal is not None:
        trainer.journal.log.wal.roll()


def wait_prepared(trainer: ToyTrainer) -> None:
    """Until the next log file is made, or is known not to be."""
    until = time.monotonic() + 60
    while (wal := trainer.journal.log.wal) is not None and not (wal._preallocator._ready or wal._preallocator._failure):
        assert time.monotonic() < until
        time.sleep(0.001)


def train(trainer: ToyTrainer, until: int) -> None:
    trainer.train(until, say=lambda _: roll(trainer))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("leave", "writer", "durability", "plenty"),
    campaign.each_once(
        [0, 4096, 3 * MIB], ["direct", "thread"], ["process", "machine", "machine"], ["short", "plenty", "plenty"]
    ),
    indirect=["plenty"],
)
@pytest.mark.usefixtures("plenty")
def test_training_goes_on_and_logging_resumes_when_there_is_space(
    toy: Callable[..., ToyTrainer],
    clock: FakeClock,
    disk: Path,
    caplog: pytest.LogCaptureFixture,
    writer: str,
    durability: str,
    leave: int,
) -> None:
    trainer = toy(writer=writer, durability=durability)
    trainer.recover()
    train(trainer, 4)
    caplog.clear()
    ballast = fill(disk, leave=leave)
    for until in (12, 20, 30):
        train(trainer, until)
        clock.advance(100)
    assert trainer.state.everything() == state_at(30)
    has_room = leave == 3 * MIB  # for a segment: logging may go on, for a moment or, by a checkpoint ahead of time, for longer
    assert trainer.journal.is_suspended or has_room
    ballast.unlink()
    for until in (32, 34):  # a failure of before may be seen at the first step only
        clock.advance(100)
        train(trainer, until)
    assert not trainer.journal.is_suspended
    assert trainer.journal.committed == 34
    messages = [record.getMessage() for record in caplog.records if "logging is suspended" in record.getMessage()]
    incidents = trainer.journal.catalog.incidents()
    assert [row.why in message for row, message in zip(incidents, messages, strict=True)] == [True] * len(messages)
    assert has_room or (len(incidents), incidents[-1].to_step in (31, 33)) == (1, True)
    trainer.journal.close()
    again = toy()
    assert (again.recover().step, again.state.everything() == state_at(34)) == (34, True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("count", "leave", "writer"), campaign.each_once([2, 3, 2, 3], [0, 100 * 1024], ["direct", "thread", "thread", "direct"])
)
def test_the_space_of_older_checkpoints_keeps_the_log_going(
    toy: Callable[..., ToyTrainer], disk: Path, caplog: pytest.LogCaptureFixture, writer: str, leave: int, count: int
) -> None:
    sizes = (7, 100_000)  # a checkpoint is larger than what a file system takes for a file
    trainer, behind = toy(writer=writer, retention=KeepLatest(count), sizes=sizes, policy=EverySteps(4)), 0

    def look(step: int) -> None:
        nonlocal behind
        trainer.journal.wait_synced()
        trainer.journal.wait_checkpoint()
        behind = max(behind, step - trainer.journal.committed)

    trainer.recover()
    trainer.train(20, say=look)
    assert len(trainer.journal.catalog.checkpoints()) == count
    ballast = fill(disk, leave=leave)
    caplog.clear()
    trainer.train(110, say=look)
    assert behind <= (2 if writer == "thread" else 1)
    assert (trainer.journal.is_suspended, trainer.journal.committed) == (False, 110)
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    print(*told, sep="\n")
    assert len([message for message in told if "only the newest checkpoint is kept" in message]) <= 1
    ballast.unlink()
    trainer.train(140, say=look)
    assert len(trainer.journal.catalog.checkpoints()) == count
    trainer.journal.close()
    again = toy(retention=KeepLatest(count), sizes=sizes)
    assert (again.recover().step, again.state.everything() == state_at(140, sizes)) == (140, True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("is_slow", "keep", "writer"),
    campaign.each_once([True, False], [KeepLatest(1), KeepLatest(2)], ["direct", "thread"]),
    ids=str,
)
def test_a_log_that_fills_the_disk_before_a_checkpoint_is_due_gives_way_to_one(
    toy: Callable[..., ToyTrainer],
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
    keep: RetentionPolicy,
    is_slow: bool,
) -> None:
    monkeypatch.setattr(preallocator, "SEGMENT_RECORDS_WANTED", 4)  # the disk holds some such files
    sizes = (7, 100_000)
    trainer, behind = toy(writer=writer, retention=keep, sizes=sizes, policy=NEVER), []

    def look(step: int) -> None:
        trainer.journal.wait_synced()
        if is_slow:
            wait_prepared(trainer)
            trainer.journal.wait_checkpoint()
        behind.append(step - trainer.journal.committed)
        clock.advance(1000)  # past any wait for the next try

    trainer.recover()
    trainer.train(100, say=look)
    if is_slow:
        assert trainer.journal.catalog.segments()[0].ordinal > 12  # several times what the disk holds
        assert trainer.journal.catalog.incidents() == []
        assert max(behind) <= 1
    is_slow = True
    trainer.train(110, say=look)
    assert 0 in behind[-10:]
    step = trainer.journal.committed
    trainer.journal.close()
    again = toy(retention=keep, sizes=sizes)
    assert (again.recover().step, again.state.everything() == state_at(step, sizes)) == (step, True)


@pytest.mark.sampled(1)
def test_a_new_run_on_a_full_disk_is_refused_in_words(toy: Callable[..., ToyTrainer], disk: Path) -> None:
    fill(disk)
    with pytest.raises(UsageError, match=r"cannot be (created|opened for writing).*No space left"):
        toy()
    for left in disk.glob("ballast-*"):
        left.unlink()
    trainer = toy()
    trainer.recover()
    trainer.train(3)
    assert trainer.journal.committed == 3


CHILD = """
import sys
from tests.support.toy import open_toy
from tranlogs.base.config import JournalConfig
from tranlogs.retention import EverySteps
trainer = open_toy(sys.argv[1], sizes=(7, 300), config=JournalConfig(segment_bytes=1 << 20), policy=EverySteps(3))
trainer.recover()
print("recovered", flush=True)
for step in range(1, 200):
    trainer.train(trainer.journal.step + 1)
    if step % 20 == 0 and trainer.journal.log.wal is not None:
        trainer.journal.log.wal.roll()
trainer.journal.close()
print("done", flush=True)
"""


@pytest.mark.sampled(1)
def test_no_signal_ends_a_process_whose_disk_fills_up_at_full_speed(disk: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(disk / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "recovered\n"
    while process.poll() is None:
        fill(disk).unlink()
    out, err = process.communicate()
    assert (process.returncode, out) == (0, "done\n"), err


@pytest.mark.sampled(1)
def test_a_monitor_gives_space_back_on_a_disk_without_any(toy: Callable[..., ToyTrainer], disk: Path) -> None:
    trainer = toy(retention=KeepAll())
    trainer.recover()
    train(trainer, 14)
    trainer.journal.close()
    fill(disk)
    assert free_bytes(disk) < 4096
    command = [sys.executable, "-m", "tranlogs", "monitor", str(disk / "run"), "--once", "--budget", "8MiB"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert free_bytes(disk) > 4 * MIB, ended.stderr
    assert toy(retention=KeepAll()).recover().step == 14
