"""A server that forks toy trainers which are told to end by signals, each in another situation (the functions below).

Each says (see tests/support/forking.py) `ready STEP` where it awaits a signal.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import signal
import threading
import time
from typing import Any, NoReturn

from tests.support.forking import say, serve
from tests.support.toy import ToyTrainer, open_toy
from tranlogs import EverySteps
from tranlogs.base.config import JournalConfig
from tranlogs.base.types import dense
from tranlogs.checkpoints import Checkpoint
from tranlogs.journal import checkpointing
from tranlogs.journal.shutdown import ShutdownHandler
from tranlogs.log.layout import Payload

SIZES = (7, 300, 2500)
STEPS = 8
_libc = ctypes.CDLL(None)


def sit_in_c() -> NoReturn:
    """Wait for ever where no signal handler of Python runs."""
    mutex = ctypes.create_string_buffer(64)
    _libc.pthread_mutex_lock(mutex)
    _libc.pthread_mutex_lock(mutex)
    raise AssertionError("this mutex is never free")


def opened(job: dict[str, Any]) -> ToyTrainer:
    config = JournalConfig(
        durability=job.get("durability", "machine"), writer=job.get("writer", "direct"), segment_bytes=1 << 20
    )
    trainer = open_toy(job["run"], sizes=SIZES, rank=job.get("rank", 0), config=config, policy=EverySteps(1000))
    ShutdownHandler(trainer.journal, lambda step, seconds: say("ship", step), "seal", job.get("grace_seconds", 60.0))
    return trainer


def trained(job: dict[str, Any], until: int = STEPS) -> ToyTrainer:
    trainer = opened(job)
    trainer.recover()
    trainer.train(until)
    return trainer


def loop(job: dict[str, Any]) -> None:
    """Trains on and on."""
    trainer = opened(job)
    trainer.recover()
    trainer.train(10**9, lambda step: say("ready", step) if step == STEPS else None)


def collective(job: dict[str, Any]) -> None:
    """Sits in C between two steps."""
    say("ready", trained(job).journal.step)
    sit_in_c()


def twice(job: dict[str, Any]) -> None:
    """Is told again and again."""
    trained(job)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    sit_in_c()


def recovery(job: dict[str, Any]) -> None:
    """Is still in the middle of it."""
    trainer = opened(job)

    def restore(checkpoint: Checkpoint) -> None:
        say("ready", 0)
        sit_in_c()

    trainer.state.restore = restore  # type: ignore[method-assign]
    trainer.recover()


def checkpoint(job: dict[str, Any]) -> None:
    """A checkpoint is being written, and takes for ever."""
    trainer = trained(job)

    def write(*_: object) -> NoReturn:
        say("ready", STEPS)
        sit_in_c()

    checkpointing.write_checkpoint = write  # type: ignore[assignment]
    trainer.journal.checkpoint(trainer.state.snapshot())
    sit_in_c()


def amid(job: dict[str, Any]) -> None:
    """Sits in C within a step."""
    trainer = trained(job)
    trainer.journal.begin_step(Payload.of([("grad/w0", dense(trainer.state.parameters["w0"]))]))
    say("ready", STEPS)
    sit_in_c()


def step(job: dict[str, Any]) -> None:
    """Is within a step, and comes to its end a moment after the signal."""
    trainer = trained(job)
    journal, before = trainer.journal, ShutdownHandler.shut_down

    def shut_down(self: ShutdownHandler, reason: str, end: float) -> None:
        threading.Timer(0.1, journal.commit_step, (record, {})).start()
        before(self, reason, end)

    ShutdownHandler.shut_down = shut_down  # type: ignore[method-assign]
    record = journal.begin_step(Payload.of([]))
    say("ready", STEPS)
    sit_in_c()


def hang(job: dict[str, Any]) -> None:
    """Its disk hangs."""
    trainer = trained(job)
    trainer.journal.shut_down = lambda seconds: sit_in_c()  # type: ignore[method-assign,assignment]
    say("ready", STEPS)
    sit_in_c()


_received = list[int]()  # An event would not do: a handler that comes while its lock is held waits for ever.


def failing(job: dict[str, Any]) -> None:
    """Ends by an exception."""
    trained(job)
    atexit._run_exitfuncs()  # a forked process runs them when it is told to


def wait_in_python() -> None:
    """Until `theirs` was called. In turns: a signal that comes just before a wait does not end it."""
    while not _received:
        time.sleep(0.05)


def theirs(number: int, frame: object) -> None:
    say("theirs", number)
    _received.append(number)


def handler_before(job: dict[str, Any]) -> None:
    """The script handles the signal, and trains on."""
    source, target = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGTERM, theirs)
    signal.set_wakeup_fd(target)
    trainer = trained(job)
    say("ready", STEPS)
    wait_in_python()
    os.set_blocking(source, True)
    say("byte", os.read(source, 1)[0])
    trainer.train(STEPS + 4)
    trainer.journal.close()


def handler_after(job: dict[str, Any]) -> None:
    """A library handles it, and calls the handler that it found."""
    trainer = trained(job)
    found = signal.getsignal(signal.SIGTERM)
    assert callable(found)

    def composed(number: int, frame: Any) -> None:
        theirs(number, frame)
        found(number, frame)

    signal.signal(signal.SIGTERM, composed)
    say("ready", STEPS)
    wait_in_python()
    trainer.train(STEPS + 4)
    trainer.journal.close()


def raised_again(job: dict[str, Any]) -> None:
    """A library handles it, and then lets it do what it did before."""
    journal = trained(job).journal
    found = signal.getsignal(signal.SIGTERM)

    def once(number: int, frame: Any) -> None:
        theirs(number, frame)
        signal.signal(number, found)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, once)
    say("ready", journal.step)
    wait_in_python()
    sit_in_c()


def displaced(job: dict[str, Any]) -> None:
    """An event loop puts its own pipe in place of ours."""
    journal = trained(job).journal
    _, target = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(target)
    say("ready", journal.step)
    wait_in_python()


def ignored(job: dict[str, Any]) -> None:
    """One signal is ignored, and the other one shows where all threads stand."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, open(os.devnull, "w"))  # noqa: SIM115
    trainer = trained(job)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    for number in (signal.SIGTERM, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    trainer.train(STEPS + 4)
    trainer.journal.close()


def thread(job: dict[str, Any]) -> None:
    """Trains in another thread."""
    worker = threading.Thread(target=trained, args=(job,))
    worker.start()
    worker.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    say("ready", STEPS)
    sit_in_c()


def fork(job: dict[str, Any]) -> None:
    """Its child, a worker of a data loader, is told to end, and not itself."""
    trainer = trained(job)
    child = os.fork()
    if child == 0:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
        say("ready", STEPS)
        sit_in_c()
    _, status = os.waitpid(child, 0)
    say("child", os.waitstatus_to_exitcode(status))
    trainer.train(STEPS + 4)
    trainer.journal.close()


def orphan(job: dict[str, Any]) -> None:
    """Its parent, which says that it is torchrun, is killed."""
    os.environ["TORCHELASTIC_RUN_ID"] = "x"
    source, target = os.pipe()
    worker = os.fork()
    if worker == 0:
        journal = trained(job).journal
        os.write(target, b"x")
        say("worker", os.getpid())
        say("ready", journal.step)
        sit_in_c()
    os.read(source, 1)
    signal.pause()


if __name__ == "__main__":
    serve(lambda job: globals()[job["mode"]](job), reaps=True)
