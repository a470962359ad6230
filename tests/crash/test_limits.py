"""File handles, address space or threads are used up: training goes on, logging resumes, and nothing sound is given up."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.crash.processes import Judge
from tests.crash.toy_trainers import CHILD
from tests.support import campaign
from tests.support.abandon import abandoned_copy
from tests.support.clock import FakeClock
from tests.support.forking import ForkServer
from tests.support.toy import open_toy, uninterrupted
from tranlogs.base import threads
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import CannotRead, LogUnavailable, UsageError
from tranlogs.retention import EverySteps

pytestmark = pytest.mark.crash

SIZES = (7, 300)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", campaign.seeds(5), ids=str)
@pytest.mark.parametrize("what", ["handles", "memory"])
def test_training_goes_on_when_a_limit_is_reached(memory_path: Path, what: str, seed: int) -> None:
    print(f"repeat with TRANLOGS_SEED={seed}")
    with closing(ForkServer(CHILD)) as server:
        server.start({"run": str(memory_path / "run"), "limit": what, "seed": seed})
        said = list(iter(server.hear, ("done", "")))
        print(*said, sep="\n")
        assert server.reap() == 0
    assert [text for word, text in said if word == "wrong"] == []
    warnings = [text for word, text in said if word == "warning"]
    assert any("logging is suspended" in text or "could not be written" in text for text in warnings)
    names = {"handles": "file handles used up while training", "memory": "address space used up while training"}
    with closing(Judge(memory_path, names[what])) as judge:
        judge(memory_path / "run", int(dict(said)["step"]))


@pytest.mark.parametrize(("what", "kib"), [("a segment", 700), ("the catalog", 1060)])
def test_a_limit_on_the_size_of_files_is_named(
    memory_path: Path, caplog: pytest.LogCaptureFixture, what: str, kib: int
) -> None:
    clock, limits = FakeClock(), resource.getrlimit(resource.RLIMIT_FSIZE)
    config = JournalConfig(segment_bytes=1 << 20, durability="machine")
    trainer = open_toy(memory_path / "run", sizes=(10,), config=config, policy=EverySteps(10**6), clock=clock)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kib << 10, limits[1]))
        trainer.recover()
        while not trainer.journal.is_suspended:
            trainer.train(trainer.journal.step + 50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"the limit on the size of a file (ulimit -f) for this process is {kib << 10:,} bytes" in caplog.text
    assert "Logging resumes by itself, from a fresh checkpoint, when the limit is raised" in caplog.text
    clock.advance(1000)
    trainer.train(trainer.journal.step + 1)
    assert not trainer.journal.is_suspended
    trainer.journal.close()


@pytest.mark.parametrize("leave", range(12) if campaign.is_soak() else range(0, 12, 2))
def test_recovery_without_handles_is_refused_and_gives_nothing_up(memory_path: Path, leave: int) -> None:
    """It must not take what it cannot open for damaged, and go on from an older step."""
    trainer = open_toy(memory_path / "run", sizes=SIZES, policy=EverySteps(6), config=JournalConfig(segment_bytes=1 << 20))
    trainer.recover()
    trainer.train(10)
    abandoned_copy(trainer.journal, memory_path / "left")
    trainer.journal.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + leave + 1, hard))
    again, refused = None, None
    try:
        again = open_toy(memory_path / "left", sizes=SIZES)
        step = again.recover().step
    except UsageError as error:
        refused = error
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(held[0])
        if refused is not None and again is not None:
            again.journal.close()
    if refused is not None:
        print(refused)
        assert isinstance(refused, CannotRead) or "Too many open files" in str(refused)
        again = open_toy(memory_path / "left", sizes=SIZES)
        step = again.recover().step
    assert again is not None
    assert step == 10
    assert again.state.everything() == uninterrupted(10, sizes=SIZES).everything()
    again.journal.close()


@pytest.mark.parametrize(("spared", "writer"), campaign.each_once(range(6), ["direct", "thread"]))
def test_training_goes_on_without_threads(memory_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Any, spared: int) -> None:
    clock, started = FakeClock(), [0]

    def start(thread: threading.Thread) -> None:
        started[0] += 1
        if started[0] > spared:
            raise RuntimeError("can't start new thread")
        real(thread)

    real = threading.Thread.start
    config = JournalConfig(segment_bytes=1 << 20, writer=writer)
    trainer = open_toy(memory_path / "run", sizes=SIZES, policy=EverySteps(4), config=config, clock=clock)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        trainer.recover()
        for _ in range(20):
            trainer.train(trainer.journal.step + 1)
            trainer.journal.wait_checkpoint()
            clock.advance(10)
    for _ in range(3):
        clock.advance(1000)
        trainer.train(trainer.journal.step + 1)
    trainer.journal.wait_synced()
    assert not trainer.journal.is_suspended
    assert trainer.journal.committed == 23
    assert trainer.state.everything() == uninterrupted(23, sizes=SIZES).everything()
    trainer.journal.close()
    again = open_toy(memory_path / "run", sizes=SIZES)
    assert (again.recover().step, again.state.everything() == trainer.state.everything()) == (23, True)
    again.journal.close()


def test_a_thread_that_dies_before_its_first_line_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "THREAD_SECONDS_MAX", 0.05)
    monkeypatch.setattr(threading.Thread, "_bootstrap", lambda thread: None)
    with pytest.raises(LogUnavailable, match="a new thread did not start to run"):
        threads.start_thread("dead", print)
    monkeypatch.undo()
    threading._limbo.clear()  # type: ignore[attr-defined]
    assert threads.start_thread("alive", int).join() is None
