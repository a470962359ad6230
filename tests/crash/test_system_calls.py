"""Every system call of the write path fails, once or from then on, or the process dies there: training goes on, nothing
that was said to be safe is lost, and what comes back is what an uninterrupted run has."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.crash import tally
from tests.crash.processes import Judge
from tests.crash.system_calls import Outcome, Trainers, demand_strace
from tests.crash.toy_trainers import expected
from tests.support import campaign

pytestmark = [pytest.mark.crash, pytest.mark.root]

CALLS = (
    "openat",
    "close",
    "write",
    "writev",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "lseek",
    "pread64",
    "preadv",
    "preadv2",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "mkdir",
    "rmdir",
    "unlink",
    "unlinkat",
    "flock",
    "fcntl",
    "fstatfs",
    "getdents64",
    "madvise",
)
KILLS_ONLY = ("mmap", "munmap", "clone3", "futex")  # an error there is one of the memory or of the threads that Python needs
VARIES = ("futex", "munmap", "mmap", "close", "clone3", "madvise")  # their number differs from run to run
READS = ("openat", "pread64", "preadv", "preadv2")
# Which of two names a call has is up to Python and the C library.
NAMES = [{"pwritev", "pwritev2"}, {"preadv", "preadv2"}, {"unlink", "unlinkat"}]
LIVES = ("opening", "recovering", "training", "closing")  # parts of a process's life in which a call is hit
CHANGE_NOTHING = {  # on the disk
    "access",
    "brk",
    "clone3",
    "exit",
    "exit_group",
    "faccessat2",
    "futex",
    "getpid",
    "getrandom",
    "gettid",
    "getuid",
    "ioctl",
    "membarrier",
    "mmap",
    "mprotect",
    "munmap",
    "newfstatat",
    "read",
    "fstat",
    "stat",
    "statfs",
    "prlimit64",
    "readlink",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigprocmask",
    "sched_getaffinity",
    "sched_yield",
    "select",
    "sendto",
    "set_robust_list",
    "sysinfo",
    "uname",
    "clock_nanosleep",
    "mremap",
    "getcwd",
    "kill",
    "tgkill",
    "geteuid",
}
UNTIL, END = 30, 40
SEED, CALLS_EACH = campaign.seed(), campaign.rounds(3)  # calls of each kind that are hit: TRANLOGS_SOAK=1000 takes them all
WRITERS = ("direct", "thread")
SEVERAL = "one of several system calls that fail in turn, or SIGKILL at one, in several lives of a run"
OPENING = "a system call fails while a run is opened and recovered"
UNREAD = "a read fails while a run is opened: an older step came back, and it was said"


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

    def __call__(self, life: str, call: str, *about: object) -> Iterator[tuple[int, str]]:
        return sample({writer: self.counts(life, writer).get(call, 0) for writer in WRITERS}, life, call, *about)


@pytest.fixture(scope="module")
def sampler(trainers: Trainers, counted: Path, left: Left) -> Sampler:
    return Sampler(trainers, counted, left)


def sample(counts: dict[str, int], attach: str, call: str, *about: object) -> Iterator[tuple[int, str]]:
    """Which calls are hit, and how records are handed over. It is the first thread to make so many."""
    every = [(nth, writer) for writer, count in counts.items() for nth in range(1, count + 1)]
    yield from campaign.dice(attach, call, *about).sample(every, min(CALLS_EACH, len(every)))


def assert_nothing_is_lost(judge: Judge, run: Path, said: int, fault: str, tries: int) -> None:
    """`tries`: how often the fault truly happened."""
    with tally.trying(fault):
        verdict = judge(run, said)
    tally.note(fault, tries, seconds=verdict["seconds"])


def killed_at(sampler: Sampler, folder: Path, call: str, nth: int, life: str, writer: str) -> tuple[Path, Outcome]:
    """A run that was killed at the n-th call, or, where it makes fewer than the counted one did, at an earlier one."""
    while True:
        run = folder / f"run-{nth}-{writer}"
        inject = f"inject={call}:signal=KILL:when={nth}"
        outcome = trained(
            sampler.trainers, run, "-e", f"trace={call}", "-e", inject, life=life, writer=writer, left=sampler.left
        )
        print(f"{inject} {writer}: {outcome}")
        assert not outcome.failed
        if outcome.was_killed or nth == 1:
            return run, outcome
        nth //= 2


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


@pytest.mark.sampled(35)
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("call", [*CALLS, *KILLS_ONLY])
def test_a_kill_at_a_system_call_loses_nothing_committed(
    sampler: Sampler, judge: Judge, memory_path: Path, call: str, life: str
) -> None:
    for nth, writer in sampler(life, call):
        run, outcome = killed_at(sampler, memory_path, call, nth, life, writer)
        assert outcome.was_killed or call in VARIES
        assert_nothing_is_lost(judge, run, outcome.committed, "SIGKILL at a system call", int(outcome.was_killed))


def assert_training_went_on(outcome: Outcome, end: int) -> None:
    assert not outcome.failed
    assert outcome.status == 0
    assert outcome.end == ["False", str(end), str(expected(end))]


@pytest.mark.sampled(15)
@pytest.mark.parametrize(
    ("call", "life", "error", "onwards"),
    campaign.pairwise(CALLS, ["training", "closing"], ["ENOSPC", "EIO"], [False, True]),
)
def test_training_goes_on_when_a_system_call_fails(
    sampler: Sampler, judge: Judge, memory_path: Path, call: str, life: str, error: str, onwards: bool
) -> None:
    """And when it works again, logging resumes; a run that could not be closed in order is opened and gone on with."""
    for nth, writer in sampler(life, call, error, onwards):
        run = memory_path / f"run-{nth}-{writer}"
        inject = f"inject={call}:error={error}:when={nth}" + ("+" if onwards else "")
        outcome = trained(
            sampler.trainers, run, "-e", f"trace={call}", "-e", inject, life=life, writer=writer, left=sampler.left
        )
        print(f"{inject} {writer}: {outcome}")
        assert_training_went_on(outcome, END)
        assert_nothing_is_lost(judge, run, END, "a system call fails while training", len(outcome.hit))


@pytest.mark.sampled(15)
@pytest.mark.parametrize("onwards", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"] if campaign.is_soak() else ["either"])
@pytest.mark.parametrize("call", CALLS)
def test_a_system_call_that_fails_while_a_run_is_opened_loses_nothing(
    sampler: Sampler, judge: Judge, memory_path: Path, call: str, error: str, onwards: bool
) -> None:
    """A run that a killed trainer left is opened, recovered and gone on with; if it is refused, then in words."""
    if error == "either":
        error = campaign.dice(call, onwards).choice(["ENOSPC", "EIO"])
    killed = sampler.left
    for nth, writer in sampler("recovering", call, error, onwards, "left"):
        run = memory_path / f"run-{nth}-{writer}"
        inject = f"inject={call}:error={error}:when={nth}" + ("+" if onwards else "")
        outcome = trained(
            sampler.trainers, run, "-e", f"trace={call}", "-e", inject, life="recovering", writer=writer, left=killed
        )
        print(f"{killed}\n{inject} {writer}: {outcome}")
        if outcome.refused:
            assert not outcome.failed
            assert_nothing_is_lost(judge, run, killed.committed, OPENING, len(outcome.hit))
            continue
        assert outcome.recovered is not None
        if outcome.recovered < killed.committed:  # what the disk cannot read is damage: said, and worked around
            assert call in READS
            said = ("had been committed, but the readable log", "cannot be read", "can be found", "cannot be opened")
            assert any(word in warning for warning in outcome.warnings for word in said)
        assert_training_went_on(outcome, END)
        fault = UNREAD if outcome.recovered < killed.committed else OPENING
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
