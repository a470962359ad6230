"""A process that is told to end (SIGTERM, SIGUSR1, the death of its torchrun) seals and syncs its log, whatever it is at."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.crash.signal_child import SIZES, STEPS
from tests.support.forking import ForkServer
from tests.support.toy import open_toy, uninterrupted
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import UsageError
from tranlogs.catalog import Catalog
from tranlogs.journal import JournalPaths, read_owner, shutdown
from tranlogs.journal.shutdown import ShutdownHandler

pytestmark = pytest.mark.crash

CHILD = Path(__file__).with_name("signal_child.py")
_SECONDS_MAX = 300.0  # a guard; nothing here takes as long


@dataclass
class Trainer:
    """One job of signal_child.py."""

    server: ForkServer
    pid: int
    said: list[str] = field(default_factory=list)

    def line(self) -> tuple[str, str]:
        """The first word of what it says next, and the rest."""
        word, rest = self.server.hear()
        self.said.append(f"{word} {rest}")
        return word, rest

    def wait_for(self, wanted: str) -> str:
        """The rest of the line that begins with a word."""
        while True:
            word, rest = self.line()
            if word == wanted:
                return rest
            assert word != "exit", self.said

    def told(self, number: int) -> int:
        """Once it is ready, send a signal; how it ended."""
        self.wait_for("ready")
        os.kill(self.pid, number)
        return self.ended()

    def ended(self) -> int:
        """How it ended."""
        return int(self.wait_for("exit"))


class Server(ForkServer):
    """signal_child.py."""

    def begin(self, run: Path, mode: str, **options: Any) -> Trainer:
        """Start a trainer in a situation: the name of a function in signal_child.py."""
        return Trainer(self, self.start({"run": str(run), "mode": mode, **options}))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server(CHILD)
    yield found
    found.close()


def sealed(run: Path) -> int:
    """The step up to which the log is sealed and synced; -1 if a part of it is not."""
    catalog = Catalog.open(JournalPaths.of(run).folder)
    try:
        marks = catalog.watermarks()
        is_open = any(row.state == "open" for row in catalog.segments())
        return -1 if is_open or marks.synced != marks.committed else marks.committed
    finally:
        catalog.close()


def recovered(run: Path) -> int:
    """Where the next process goes on, with the right state."""
    trainer = open_toy(run, sizes=SIZES, config=JournalConfig(segment_bytes=1 << 20))
    step = trainer.recover().step
    assert trainer.state.everything() == uninterrupted(step, sizes=SIZES).everything()
    trainer.train(step + 2)
    trainer.journal.close()
    return step


@pytest.mark.parametrize(
    ("mode", "options", "number"),
    [
        ("loop", {}, signal.SIGTERM),
        ("loop", {"writer": "thread"}, signal.SIGTERM),
        ("loop", {"durability": "process"}, signal.SIGUSR1),
        ("collective", {}, signal.SIGTERM),
        ("collective", {"durability": "process", "writer": "thread"}, signal.SIGUSR1),
        ("twice", {}, signal.SIGTERM),
        ("checkpoint", {}, signal.SIGTERM),
        ("step", {}, signal.SIGTERM),
        ("displaced", {}, signal.SIGUSR1),
        ("raised_again", {}, signal.SIGTERM),
    ],
)
def test_the_log_is_sealed_and_synced_before_the_process_dies_by_the_signal(
    server: Server, tmp_path: Path, mode: str, options: dict[str, Any], number: int
) -> None:
    trainer = server.begin(tmp_path, mode, **options)
    assert (trainer.ended() if mode == "twice" else trainer.told(number)) == -number
    committed = sealed(tmp_path)
    assert committed >= STEPS
    assert f"ship {committed}" in trainer.said
    owner = read_owner(tmp_path / "rank0")
    assert owner is not None
    assert (owner.is_alive, owner.has_closed) == (False, True)
    assert recovered(tmp_path) == committed


def test_a_process_that_ends_by_an_exception_seals_and_ships(server: Server, tmp_path: Path) -> None:
    trainer = server.begin(tmp_path, "failing")
    assert trainer.ended() == 0
    assert f"ship {STEPS}" in trainer.said
    assert sealed(tmp_path) == STEPS
    assert recovered(tmp_path) == STEPS


def test_in_recovery_nothing_is_there_to_be_saved_and_nothing_is_lost(server: Server, tmp_path: Path) -> None:
    assert server.begin(tmp_path, "collective").told(signal.SIGTERM) == -signal.SIGTERM
    assert server.begin(tmp_path, "recovery").told(signal.SIGTERM) == -signal.SIGTERM
    assert recovered(tmp_path) == STEPS


def test_a_step_that_does_not_end_is_left_out(server: Server, tmp_path: Path) -> None:
    assert server.begin(tmp_path, "amid").told(signal.SIGTERM) == -signal.SIGTERM
    assert sealed(tmp_path) == STEPS
    assert recovered(tmp_path) == STEPS


def test_when_grace_is_over_the_process_dies_whatever_hangs(server: Server, tmp_path: Path) -> None:
    assert server.begin(tmp_path, "hang", grace_seconds=0.3).told(signal.SIGUSR1) == -signal.SIGUSR1
    assert recovered(tmp_path) == STEPS


@pytest.mark.parametrize("mode", ["handler_before", "handler_after"])
def test_a_handler_of_somebody_else_decides(server: Server, tmp_path: Path, mode: str) -> None:
    trainer = server.begin(tmp_path, mode)
    assert trainer.told(signal.SIGTERM) == 0
    assert f"theirs {int(signal.SIGTERM)}" in trainer.said
    if mode == "handler_before":
        assert f"byte {int(signal.SIGTERM)}" in trainer.said
    assert recovered(tmp_path) == STEPS + 4


def test_what_is_ignored_or_handled_in_c_stays_so(server: Server, tmp_path: Path) -> None:
    trainer = server.begin(tmp_path, "ignored")
    assert trainer.ended() == 0
    assert recovered(tmp_path) == STEPS + 4


def test_in_another_thread_signals_do_what_they_did(server: Server, tmp_path: Path) -> None:
    assert server.begin(tmp_path, "thread").told(signal.SIGTERM) == -signal.SIGTERM
    assert recovered(tmp_path) == STEPS


def test_a_signal_to_a_forked_child_ends_the_child_alone(server: Server, tmp_path: Path) -> None:
    trainer = server.begin(tmp_path, "fork")
    trainer.wait_for("ready")
    children = Path(f"/proc/{trainer.pid}/task/{trainer.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    assert trainer.wait_for("child") == str(-signal.SIGTERM)
    assert trainer.ended() == 0
    assert recovered(tmp_path) == STEPS + 4


def test_an_orphan_of_torchrun_ends_with_its_log_sealed(server: Server, tmp_path: Path) -> None:
    agent = server.begin(tmp_path, "orphan")
    worker = os.pidfd_open(int(agent.wait_for("worker")))
    agent.wait_for("ready")
    os.kill(agent.pid, signal.SIGKILL)
    assert select.select([worker], [], [], _SECONDS_MAX)[0], "the orphan lives on"
    os.close(worker)
    agent.line(), agent.line()  # of the agent and of its worker, in any order
    assert f"ship {STEPS}" in agent.said
    assert sealed(tmp_path) == STEPS
    assert recovered(tmp_path) == STEPS


# In this process.


def test_handlers_are_given_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in shutdown.SIGNALS]
    trainers = [open_toy(tmp_path / name, sizes=SIZES) for name in "ab"]
    handlers = [ShutdownHandler(trainer.journal, lambda step, seconds: None, "seal", 5.0) for trainer in trainers]
    during = [signal.getsignal(number) for number in shutdown.SIGNALS]
    assert during != before
    handlers[0].close()
    assert [signal.getsignal(number) for number in shutdown.SIGNALS] == during
    handlers[1].close()
    assert [signal.getsignal(number) for number in shutdown.SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1
    for trainer in trainers:
        trainer.journal.close()


def test_signals_can_be_left_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    trainer = open_toy(tmp_path, sizes=SIZES)
    handler = ShutdownHandler(trainer.journal, lambda step, seconds: None, None, 5.0)
    assert signal.getsignal(signal.SIGTERM) == before
    handler.close()
    trainer.journal.close()


@pytest.mark.parametrize(
    ("on_signal", "grace_seconds"), [("stop", 5.0), (True, 5.0), ("seal", 0), ("seal", -1), ("seal", "20s")]
)
def test_wrong_settings_are_refused(tmp_path: Path, on_signal: Any, grace_seconds: Any) -> None:
    trainer = open_toy(tmp_path, sizes=SIZES)
    with pytest.raises(UsageError, match="on_signal must" if grace_seconds == 5.0 else "grace_seconds must"):
        ShutdownHandler(trainer.journal, lambda step, seconds: None, on_signal, grace_seconds)
    trainer.journal.close()
