"""Every system call of the write path fails, once or from then on, or the process dies there: training goes on, nothing
that was said to be safe is lost, and what comes back is what an uninterrupted run has."""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.crash import tally
from tests.crash.processes import Judge
from tests.crash.toy_trainers import CHILD, expected
from tests.support import campaign
from tests.support.forking import REAP, ForkServer

pytestmark = [pytest.mark.crash, pytest.mark.root]

# A kill at one of these leaves a file as no other kill does. At the others it leaves what the call before left.
CHANGES = [
    *("write", "writev", "pwrite64", "pwritev", "pwritev2", "ftruncate", "fallocate", "fsync", "fdatasync"),
    *("rename", "renameat", "mkdir", "rmdir", "unlink", "unlinkat"),
]
LOOKS = ["openat", "close", "lseek", "pread64", "preadv", "preadv2", "flock", "fcntl", "fstatfs", "getdents64", "madvise"]
CALLS = (*CHANGES, *LOOKS)
KILLS_ONLY = ("mmap", "munmap", "clone3", "futex")  # an error there is one of the memory or of the threads that Python needs
VARIES = ("futex", "munmap", "mmap", "close", "clone3", "madvise")  # their number differs from run to run
READS = ("openat", "pread64", "preadv", "preadv2")
# Which of two names a call has is up to Python and the C library.
NAMES = [{"pwritev", "pwritev2"}, {"preadv", "preadv2"}, {"unlink", "unlinkat"}]
LIVES = ("opening", "recovering", "training", "closing")  # parts of a process's life in which a call is hit
CHANGE_NOTHING = {  # on the disk
    *("access", "brk", "clock_nanosleep", "clone3", "exit", "exit_group", "faccessat2", "fstat", "futex", "getcwd", "geteuid"),
    *("getpid", "getrandom", "gettid", "getuid", "ioctl", "kill", "membarrier", "mmap", "mprotect", "mremap", "munmap"),
    *("newfstatat", "prlimit64", "read", "readlink", "restart_syscall", "rseq", "rt_sigaction", "rt_sigprocmask"),
    *("sched_getaffinity", "sched_yield", "select", "sendto", "set_robust_list", "stat", "statfs", "sysinfo"),
    *("tgkill", "uname"),
}
UNTIL, END = 30, 40
CALLS_EACH = campaign.rounds(3)  # calls of each kind that are hit: TRANLOGS_SOAK=1000 takes them all
PLACES_MAX = 10**6 if campaign.is_soak() else 1  # of a call, in a test
WRITERS = ("direct", "thread")
SEVERAL = "one of several system calls that fail in turn, or SIGKILL at one, in several lives of a run"
OPENING = "a system call fails while a run is opened and recovered"
UNREAD = "a read fails while a run is opened: an older step came back, and it was said"


def demand_strace() -> None:
    """Skip the test where there is no strace, or fail it where nothing may be skipped."""
    if shutil.which("strace") is not None:
        return
    if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
        pytest.fail("TRANLOGS_REQUIRE_ALL=1, and this test needs strace")
    pytest.skip("needs strace")


@contextmanager
def attached(pid: int, *options: str) -> Iterator[None]:
    """strace follows a process and the threads that it will have, until the end of the block."""
    tracer = subprocess.Popen(["strace", "-f", "-p", str(pid), *options], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    try:
        first = tracer.stderr.readline()
        assert "attached" in first, first
        yield
    finally:
        tracer.send_signal(signal.SIGINT)  # it detaches, and the process goes on
        tracer.communicate()


@dataclass
class Outcome:
    """What a trainer said before it ended."""

    status: int = 0
    recovered: int | None = None
    synced: int = 0
    committed: int = 0
    warnings: list[str] = field(default_factory=list)
    refused: str = ""
    failed: str = ""
    hit: set[str] = field(default_factory=set)  # the calls that strace let fail
    is_half: bool = False  # it came to the end of what it was to do under strace
    end: list[str] = field(default_factory=list)  # whether logging is suspended, what is committed, the state's sum

    def note(self, word: str, rest: str) -> None:
        """Take down a line."""
        if word == "recovered":
            self.recovered = self.committed = self.synced = int(rest)
        elif word == "step":
            self.synced, self.committed = map(int, rest.split())
        elif word == "warning":
            self.warnings.append(rest)
        elif word in ("refused", "failed"):
            setattr(self, word, rest)
        elif word == "half":
            self.is_half = True
        elif word == "end":
            self.end = rest.split()

    @property
    def was_killed(self) -> bool:
        return self.status == -signal.SIGKILL


class Trainers:
    """Forks trainers and attaches strace to them."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        with there:
            self._server = ForkServer(CHILD, stdout=there)
        self._said = here.makefile("rb")
        here.close()

    def stop(self) -> None:
        """End the server."""
        self._server.close()
        self._said.close()

    def run(
        self,
        run: Path,
        *options: str,
        until: int,
        end: int,
        attach: str = "training",
        writer: str = "direct",
        durability: str = "machine",
        settles: bool = True,
    ) -> Outcome:
        """Train in a child under strace.

        Args:
            run: the run's folder.
            options: of strace, but for its output, which is beside the run.
            until: the last step under strace.
            end: the last step.
            attach: whether strace is there from "opening" the run on, from "training" on, or while it is "closing".
            writer: of the journal.
            durability: of the journal.
            settles: whether all threads are idle between steps.
        """
        job: dict[str, Any] = {"run": str(run), "until": until, "end": end, "attach": attach, "writer": writer}
        self._server.tell({**job, "durability": durability, "settles": settles})
        outcome, trace = Outcome(), run.with_suffix(".trace")
        pid = int(self._listen(outcome, "pid"))
        if attach != "opening":
            self._listen(outcome, "trained")
        with attached(pid, *options, "-o", str(trace)):
            self._server.tell({})
            self._listen(outcome, "half", "done")
        if outcome.is_half:
            self._server.tell({})
            self._listen(outcome, "done")
        self._server.tell(REAP)
        outcome.status = int(self._listen(outcome, "exit"))
        failed = re.findall(r"^\d+ +(?:<\.\.\. )?(\w+).*\(INJECTED\)$", trace.read_text(), re.MULTILINE)
        outcome.hit = set(failed)
        return outcome

    def _listen(self, outcome: Outcome, *words: str) -> str:
        """Note what the trainer says, up to one of the words; gives what follows it."""
        for line in self._said:
            word, _, rest = line.decode().rstrip("\n").partition(" ")
            outcome.note(word, rest)
            if word in words:
                return rest
        raise AssertionError("the server has ended")


@pytest.fixture(scope="module")
def trainers() -> Iterator[Trainers]:
    demand_strace()
    made = Trainers()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with closing(Judge(tmp_path_factory.mktemp("judge"), None)) as made:
        yield made


@dataclass(frozen=True)
class Left:
    """A run whose trainer was killed, and the step that it had committed."""

    run: Path
    committed: int


@pytest.fixture(scope="module")
def left(trainers: Trainers, tmp_path_factory: pytest.TempPathFactory) -> Left:
    run = tmp_path_factory.mktemp("left") / "run"
    outcome = trainers.run(run, "-e", "trace=fdatasync", "-e", "inject=fdatasync:signal=KILL:when=25", until=UNTIL, end=END)
    assert outcome.was_killed
    assert outcome.committed > 6  # there is a checkpoint, and steps behind it
    return Left(run, outcome.committed)


def trained(trainers: Trainers, run: Path, *options: str, life: str, writer: str, left: Left) -> Outcome:
    """A trainer under strace in one part of its life; "recovering", it goes on with the run that was left."""
    if life == "recovering":
        shutil.copytree(left.run, run)
    attach = "opening" if life == "recovering" else life
    outcome = trainers.run(run, *options, until=UNTIL, end=END, attach=attach, writer=writer)
    if life == "recovering":
        outcome.committed = max(outcome.committed, left.committed)
    return outcome


@cache
def passed(trainers: Trainers, folder: Path, life: str, writer: str, left: Left) -> dict[str, int]:
    """How often at most a thread makes each call, in a run that nothing happens to."""
    run = folder / f"{life}-{writer}"
    outcome = trained(trainers, run, life=life, writer=writer, left=left)
    assert (outcome.status, outcome.end) == (0, ["False", str(END), str(expected(END))])
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for thread, call in re.findall(r"^(\d+) +(\w+)\(", run.with_suffix(".trace").read_text(), re.MULTILINE):
        counts[call][thread] += 1
    return {call: max(by_thread.values()) for call, by_thread in counts.items()}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counted")


@dataclass(frozen=True)
class Place:
    """A call that is hit: the n-th of its kind in a part of a life. It is the first thread to make so many."""

    life: str
    nth: int
    writer: str


@dataclass(frozen=True)
class Sampler:
    """Draws which calls are hit.

    Attributes:
        trainers: that count them.
        folder: for the runs in which they are counted.
        left: the run that is recovered.
    """

    trainers: Trainers
    folder: Path
    left: Left

    def counts(self, life: str, writer: str) -> dict[str, int]:
        """How often at most a thread makes each call in a part of its life."""
        return passed(self.trainers, self.folder, life, writer, self.left)

    def places(self, call: str, lives: Sequence[str], *about: object) -> Iterator[Place]:
        """Some places of a call: in the gate in two parts of a life, in a soak in all that make it."""
        chance = campaign.dice(call, *about)
        for life in chance.sample(lives, len(lives)):
            counts = {writer: self.counts(life, writer).get(call, 0) for writer in WRITERS}
            every = [Place(life, nth, writer) for writer in WRITERS for nth in range(1, counts[writer] + 1)]
            yield from chance.sample(every, min(CALLS_EACH, len(every)))

    def run(self, run: Path, call: str, place: Place, what: str) -> Outcome:
        """A life in which something happens at a call, as strace is told to inject it."""
        options = ("-e", f"trace={call}", "-e", f"inject={call}:{what}")
        outcome = trained(self.trainers, run, *options, life=place.life, writer=place.writer, left=self.left)
        print(call, what, place, outcome)
        return outcome


@pytest.fixture(scope="module")
def sampler(trainers: Trainers, counted: Path, left: Left) -> Sampler:
    return Sampler(trainers, counted, left)


def assert_nothing_is_lost(judge: Judge, run: Path, said: int, fault: str, tries: int) -> None:
    """`tries`: how often the fault truly happened."""
    with tally.trying(fault):
        verdict = judge(run, said)
    tally.note(fault, tries, seconds=verdict["seconds"])


def test_every_call_that_changes_a_file_is_hit(sampler: Sampler) -> None:
    """A call that Python or LMDB makes under another name than the one that is waited for would not be hit at all."""
    made = {life: set[str]().union(*(sampler.counts(life, writer) for writer in WRITERS)) for life in LIVES}
    everywhere = set[str]().union(*made.values())
    assert everywhere <= {*CALLS, *CHANGE_NOTHING}
    for names in NAMES:
        assert names & everywhere
    for life in ("opening", "recovering", "training"):
        assert {"pwrite64", "fdatasync", "fsync", "fallocate", "rename", "writev"} <= made[life]
        assert made[life] & {"pwritev", "pwritev2"}
    assert made["recovering"] & {"preadv", "preadv2"}
    assert {"pwrite64", "fdatasync", "ftruncate"} <= made["closing"]


@pytest.mark.parametrize("call", [*CHANGES, *map(campaign.in_soak, (*LOOKS, *KILLS_ONLY))])
def test_a_kill_at_a_system_call_loses_nothing_committed(sampler: Sampler, judge: Judge, memory_path: Path, call: str) -> None:
    for place in itertools.islice(sampler.places(call, LIVES), PLACES_MAX):
        nth, outcome = place.nth, Outcome()
        while not outcome.was_killed and nth:  # it may make fewer than the counted one did
            run = memory_path / f"run-{place.life}-{nth}-{place.writer}"
            outcome = sampler.run(run, call, place, f"signal=KILL:when={nth}")
            assert not outcome.failed
            nth //= 2
        assert outcome.was_killed or call in VARIES
        assert_nothing_is_lost(judge, run, outcome.committed, "SIGKILL at a system call", int(outcome.was_killed))


def assert_training_went_on(outcome: Outcome, end: int) -> None:
    assert not outcome.failed
    assert outcome.status == 0
    assert outcome.end == ["False", str(end), str(expected(end))]


@pytest.mark.parametrize(("call", "onwards"), campaign.each_once(CALLS, [False, True]))
def test_a_system_call_that_fails_loses_nothing(
    sampler: Sampler, judge: Judge, memory_path: Path, call: str, onwards: bool
) -> None:
    """Training goes on, and when the call works again, logging resumes; a run that could not be closed in order is opened.

    A run that is opened while the call fails is recovered and gone on with, or is refused in words.
    """
    chance, left = campaign.dice(call, onwards), sampler.left
    for place in itertools.islice(sampler.places(call, LIVES[1:], onwards), PLACES_MAX):
        run, error = memory_path / f"run-{place.life}-{place.nth}-{place.writer}", chance.choice(["ENOSPC", "EIO"])
        outcome = sampler.run(run, call, place, f"error={error}:when={place.nth}{'+' if onwards else ''}")
        fault = OPENING if place.life == "recovering" else "a system call fails while training"
        if outcome.refused:
            assert place.life == "recovering"
            assert not outcome.failed
            assert_nothing_is_lost(judge, run, left.committed, fault, len(outcome.hit))
            continue
        if place.life == "recovering":
            assert outcome.recovered is not None
            if outcome.recovered < left.committed:  # what the disk cannot read is damage: said, and worked around
                assert call in READS
                said = ("had been committed, but the readable log", "cannot be read", "can be found", "cannot be opened")
                assert any(word in warning for warning in outcome.warnings for word in said)
                fault = UNREAD
        assert_training_went_on(outcome, END)
        assert_nothing_is_lost(judge, run, END, fault, len(outcome.hit))


def several_faults(chance: random.Random) -> tuple[list[str], str]:
    """Options of strace: up to four kinds of calls fail, now and then or from some time on; and, or not, a kill at another."""
    calls = chance.sample(CALLS, chance.randrange(2, 6))
    injected = []
    for call in calls[1:]:
        first = chance.randrange(1, 60)
        when = chance.choice([f"{first}", f"{first}+", f"{first}+{chance.randrange(1, 9)}", f"{first}..{first + 9}"])
        injected.append(f"inject={call}:error={chance.choice(['ENOSPC', 'EIO', 'EMFILE', 'ENOMEM'])}:when={when}")
    if chance.random() < 0.6:
        injected.append(f"inject={calls[0]}:signal=KILL:when={chance.randrange(1, 80)}")
    options = ["-e", f"trace={','.join(calls)}"]
    for one in injected:
        options += ["-e", one]
    return options, " ".join(injected)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", campaign.seeds(1))
def test_faults_of_several_calls_in_several_lives_lose_nothing(
    trainers: Trainers, judge: Judge, memory_path: Path, seed: int
) -> None:
    """Each life meets other faults, while the one before was killed or ended in order."""
    chance, run, said = random.Random(seed), memory_path / "run", 0
    for _ in range(4):
        options, what = several_faults(chance)
        until = said + chance.randrange(8, 30)
        outcome = trainers.run(
            run, *options, until=until, end=until + 8, writer=chance.choice(WRITERS), settles=chance.random() < 0.5
        )
        print(f"{what}: {outcome}")
        assert not outcome.failed
        assert outcome.recovered is not None
        assert outcome.recovered >= said
        tally.note(SEVERAL, len(outcome.hit) + outcome.was_killed)
        if not outcome.was_killed:
            assert_training_went_on(outcome, until + 8)
        said = until + 8 if not outcome.was_killed else outcome.committed
    assert_nothing_is_lost(judge, run, said, SEVERAL, 0)
