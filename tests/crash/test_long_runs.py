"""Long runs, large tensors and many of them: memory, file handles, maps and disk stay flat, and after a kill all is there."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy.random  # noqa: F401  (it is imported lazily)
import pytest
import xxhash

from tests.crash import tally
from tests.crash.processes import Processes, Talk
from tests.support import campaign
from tests.support.toy import ToyTrainer, open_toy
from tranlogs.base.config import MIB, JournalConfig
from tranlogs.retention import EverySteps

pytestmark = pytest.mark.crash

GROWTH_MAX = {
    "memory": 4 * MIB,
    "objects": 50_000 if campaign.is_soak() else 2000,
    "handles": 4,
    "maps": 40,
    "threads": 1,
    "files": 8,
    "bytes": 12 * MIB,
}


TENTHS = 10
_SECONDS_MAX = 3600.0  # a guard, for a soak


class Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def taken(run: Path) -> dict[str, int]:
    """What the process and its run take now. Memory is what is in use: what the system has given goes up and down."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Allocated
    allocated = mallinfo()
    files = [path.stat().st_size for path in run.rglob("*") if path.is_file()]
    return {
        "memory": allocated.uordblks + allocated.hblkhd,
        "objects": sys.getallocatedblocks(),
        "handles": len(os.listdir("/proc/self/fd")),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
        "threads": threading.active_count(),
        "files": len(files),
        "bytes": sum(files),
    }


def opened(run: Path, writer: Any, steps: int, tensors: int, elements: int) -> ToyTrainer:
    config = JournalConfig(durability="process", segment_bytes=1 << 20, writer=writer)
    return open_toy(run, sizes=(elements,) * tensors, config=config, policy=EverySteps(max(steps // 200, 2)))


def state_sum(trainer: ToyTrainer) -> int:
    """Of parameters, momenta and random numbers, without a copy of it all."""
    state, digest = trainer.state, xxhash.xxh3_64()
    for array in [*state.parameters.values(), *state.momenta.values(), state.order]:
        digest.update(array.data)
    digest.update(repr((state.rng.bit_generator.state, state.lr)).encode())
    return digest.intdigest()


def train(talk: Talk, run: Path, writer: str, *size: int) -> None:
    """Say what it took at each tenth of the way, as a line of JSON, and wait."""
    trainer, steps = opened(run, writer, *size), size[0]
    trainer.recover()
    found, at_risk, start = [], 0, time.monotonic()
    for tenth in range(1, TENTHS + 1):
        trainer.train(steps * tenth // TENTHS)
        at_risk = max(at_risk, trainer.journal.step - trainer.journal.committed)
        trainer.journal.wait_checkpoint()  # a snapshot that is being written has its memory
        found.append(taken(run))
    seconds = time.monotonic() - start
    assert not trainer.journal.is_suspended
    trainer.journal.wait_synced()
    said: dict[str, Any] = {
        "committed": trainer.journal.committed,
        "sum": state_sum(trainer),
        "taken": found,
        "seconds": seconds,
    }
    said["at risk"] = at_risk
    talk.say(json.dumps(said))
    talk.hear()


def come_back(talk: Talk, run: Path, *size: int) -> None:
    """Say what came back, as a line of JSON."""
    start, trainer = time.monotonic(), opened(run, "direct", *size)
    report = trainer.recover()
    seconds = time.monotonic() - start
    talk.say(json.dumps({"step": report.step, "exact": report.exact, "sum": state_sum(trainer), "seconds": seconds}))
    trainer.journal.close()


def trained_and_killed(start: Processes, run: Path, *size: int, writer: str = "direct") -> dict[str, Any]:
    """What a trainer said of itself before it was killed."""
    trainer = start(train, run, writer, *size)
    said: dict[str, Any] = json.loads(trainer.answer(_SECONDS_MAX))
    trainer.end()
    assert trainer.wait() == -signal.SIGKILL
    return said


def assert_all_is_there(start: Processes, run: Path, said: dict[str, Any], fault: str, *size: int) -> None:
    process = start(come_back, run, *size)
    found = json.loads(process.answer(_SECONDS_MAX))
    assert process.wait() == 0
    is_right = (found["step"], found["exact"], found["sum"]) == (said["committed"], True, said["sum"])
    tally.note(fault, losses=not is_right, seconds=found["seconds"])
    assert is_right, (found, said)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("writer", [campaign.in_soak("direct"), "thread"])
@pytest.mark.parametrize("steps", [1_000_000 if campaign.is_soak() else 1_500])
def test_a_long_run_of_tiny_steps_takes_no_more_at_its_end_than_at_its_beginning(
    memory_path: Path, start: Processes, steps: int, writer: str
) -> None:
    """And no queue grows without a bound: what a kill costs is little, however fast the steps come."""
    said = trained_and_killed(start, memory_path / "run", steps, 2, 5, writer=writer)
    taken = said["taken"]
    print(f"{steps / said['seconds']:.0f} steps a second", *taken, sep="\n")
    # What a process takes goes up and down with the records that the index does not have yet: the least of the last counts.
    grown = {what: min(one[what] for one in taken[-4:]) - max(one[what] for one in taken[:4]) for what in GROWTH_MAX}
    assert {what: more for what, more in grown.items() if more > GROWTH_MAX[what]} == {}
    assert said["at risk"] <= (0 if writer == "direct" else 300)
    assert_all_is_there(start, memory_path / "run", said, f"a long run: {steps:,} tiny steps, then SIGKILL", steps, 2, 5)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("what", "size"),
    [
        ("50,000 parameters", (10, 50_000, 3)) if campaign.is_soak() else ("1,000 parameters", (10, 1_000, 3)),
        # In a soak just above 1 GiB, which is more than one value of the log can hold.
        ("a tensor of 1,024 MiB", (3, 1, 2**27 + 5)) if campaign.is_soak() else ("a tensor of 4 MiB", (10, 1, 2**19)),
    ],
)
def test_many_parameters_and_a_large_tensor(memory_path: Path, start: Processes, what: str, size: tuple[int, ...]) -> None:
    said = trained_and_killed(start, memory_path / "run", *size)
    print(*said["taken"], sep="\n")
    assert_all_is_there(start, memory_path / "run", said, f"a long run: {what}, then SIGKILL", *size)
