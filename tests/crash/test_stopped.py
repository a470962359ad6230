"""Processes that are stopped (SIGSTOP) while they hold something: a trainer its run, a reader the catalog or a segment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.clock import FakeClock
from tests.support.toy import ToyTrainer, open_toy, uninterrupted
from tests.support.verify import verify_run
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.base.errors import RunInUse
from tranlogs.catalog import catalog as catalogs
from tranlogs.journal import read_owner
from tranlogs.log import preallocator
from tranlogs.retention import EverySteps, KeepLatest
from tranlogs.verify import Problem

pytestmark = pytest.mark.crash

SIZES = (7, 300)
TRAINER = """
import sys
from pathlib import Path
from tranlogs.base.config import JournalConfig
from tranlogs.retention import EverySteps
from tests.support.toy import open_toy
trainer = open_toy(sys.argv[1], sizes=(7, 300), config=JournalConfig(segment_bytes=1 << 20), policy=EverySteps(5))
trainer.recover()
trainer.train(12)
print("trained", flush=True)
sys.stdin.readline()
trainer.train(30)
trainer.journal.close()
"""
READER = """
import sys
from pathlib import Path
from tranlogs.catalog import Catalog
from tranlogs.log.reader import SegmentReader
folder = Path(sys.argv[1]) / "rank0"
catalog = Catalog.open(folder)
readers = [SegmentReader(path) for path in sorted((folder / "log").glob("*.seg"))]

def look(tables):
    print("reading", flush=True)
    sys.stdin.readline()

catalog.read(look)
"""


@contextmanager
def stopped(script: str, run: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has said a word, and does not go on."""
    command = [sys.executable, "-c", script, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.communicate("\n")


def test_a_stopped_trainer_keeps_its_run(memory_path: Path) -> None:
    run = memory_path / "run"
    with stopped(TRAINER, run) as process:
        for _ in range(3):
            with pytest.raises(RunInUse, match=f"process {process.pid} on host") as caught:
                open_toy(run, sizes=SIZES)
            assert caught.value.pid == process.pid
        owner = read_owner(run / "rank0")
        assert owner is not None
        assert (owner.pid, owner.is_alive) == (process.pid, True)
        assert [found for found in verify_run(run) if isinstance(found, Problem)] == []
    assert process.returncode == 0
    trainer = open_toy(run, sizes=SIZES)
    assert trainer.recover().step == 30
    assert trainer.state.everything() == uninterrupted(30, sizes=SIZES).everything()
    trainer.journal.close()


def test_a_trainer_that_is_killed_while_it_is_stopped_gives_its_run_free(memory_path: Path) -> None:
    run = memory_path / "run"
    with stopped(TRAINER, run) as process:
        process.kill()
        process.wait()
        trainer = open_toy(run, sizes=SIZES)
        assert trainer.recover().step == 12
        trainer.journal.close()


@pytest.fixture
def trainer(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyTrainer]:
    monkeypatch.setattr(preallocator, "SEGMENT_RECORDS_WANTED", 1)
    monkeypatch.setattr(catalogs, "CATALOG_BYTES", MIB // 4)
    config = JournalConfig(durability="process", segment_bytes=MIB)
    trainer = open_toy(
        memory_path / "run", sizes=SIZES, config=config, policy=EverySteps(6), retention=KeepLatest(1), clock=FakeClock()
    )
    yield trainer
    trainer.journal.close()


def train(trainer: ToyTrainer, until: int) -> None:
    """A segment a step: the catalog is written all the time."""

    def roll(_: int) -> None:
        trainer.journal.wait_checkpoint()
        assert trainer.journal.log.wal is not None, "logging is suspended"
        trainer.journal.log.wal.roll()

    trainer.train(until, roll)


@pytest.fixture(autouse=True)
def sweeps_at_each_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete the rows of pruned segments as soon as a segment is sealed, so that the file's size says what is pinned."""
    monkeypatch.setattr("tranlogs.log.group_commit.SWEEP_SECONDS", -1.0)


def pages_of_catalog(trainer: ToyTrainer) -> int:
    """How far its file is used; behind that some space is kept."""
    env = trainer.journal.catalog._env
    assert env is not None
    return int(env.info()["last_pgno"])


def test_a_stopped_reader_stalls_nobody(trainer: ToyTrainer, memory_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, path = memory_path / "run", memory_path / "run" / "rank0" / "catalog.lmdb"
    trainer.recover()
    train(trainer, 20)
    with stopped(READER, run) as process:
        held = list((run / "rank0" / "log").glob("*.seg"))
        train(trainer, 140)
        messages = [record.getMessage() for record in caplog.records if "holds an old snapshot" in record.getMessage()]
        assert messages
        assert all(str(process.pid) in message for message in messages)
        assert path.stat().st_size > MIB // 4
        assert len(list((run / "rank0" / "log").glob("*.seg"))) < len(held) + 8  # deleted, if not reused
        assert [found for found in verify_run(run) if isinstance(found, Problem)] == []
    assert process.returncode == 0
    train(trainer, 150)
    pages = pages_of_catalog(trainer)
    train(trainer, 250)
    assert pages_of_catalog(trainer) == pages  # what was pinned is used again
    assert trainer.state.everything() == uninterrupted(250, sizes=SIZES).everything()
    trainer.journal.close()
    again = open_toy(run, sizes=SIZES)
    assert again.recover().step == 250
    again.journal.close()


def test_a_reader_that_is_killed_while_it_is_stopped_pins_nothing(trainer: ToyTrainer, memory_path: Path) -> None:
    trainer.recover()
    train(trainer, 5)
    with stopped(READER, memory_path / "run") as process:
        process.kill()
        process.wait()
        train(trainer, 300)
        pages = pages_of_catalog(trainer)
        train(trainer, 400)
        assert pages_of_catalog(trainer) == pages
    assert not trainer.journal.is_suspended
