"""Trains while file handles or address space are used up: `python limits_child.py RUN WHAT SEED`.

Prints a line of JSON at the end.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy.random  # noqa: F401  (it is imported lazily)

from tests.crash.toy_trainers import SIZES, expected, state_sum
from tests.support.clock import FakeClock
from tests.support.toy import ToyTrainer, open_toy
from tranlogs.base.config import JournalConfig
from tranlogs.log import preallocator
from tranlogs.retention import EverySteps, KeepLatest

ROUNDS = 12
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


@contextmanager
def no_handles(leave: int) -> Iterator[None]:
    """All file handles are used up but `leave`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for _ in range(min(leave, len(held))):
            os.close(held.pop())
    try:
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def get_memory_ahead() -> None:
    """The trainer's own arrays come from memory that it has; what fails is a new map, or a stack."""
    malloc = ctypes.CDLL(None)
    assert malloc.mallopt(M_TRIM_THRESHOLD, 1 << 30) == malloc.mallopt(M_MMAP_THRESHOLD, 1 << 25) == 1
    ahead = [bytearray(1 << 20) for _ in range(32)]
    del ahead


@contextmanager
def no_memory(leave: int) -> Iterator[None]:
    """No address space can be had but `leave` MiB: no map, and often no stack for a thread."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (leave << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def main(run: str, what: str, seed: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    get_memory_ahead()
    preallocator.SEGMENT_RECORDS_WANTED = 1  # small segments
    chance, clock = random.Random(int(seed)), FakeClock()
    scarce, leaves = (no_handles, range(8)) if what == "handles" else (no_memory, (1, 1, 1, 2, 3, 9))

    def opened() -> ToyTrainer:
        config = JournalConfig(segment_bytes=1 << 20, writer=chance.choice(["direct", "thread"]))
        return open_toy(run, sizes=SIZES, config=config, policy=EverySteps(6), retention=KeepLatest(1), clock=clock)

    def behind(step: int) -> None:
        clock.advance(1.0)
        if chance.random() < 0.3:
            trainer.journal.wait_synced()
        if turn == 0 or chance.random() < 0.3:
            trainer.journal.wait_checkpoint()  # the next one is not passed over because this one is still being written
        if chance.random() < 0.3 and trainer.journal.config.writer == "direct" and trainer.journal.log.wal is not None:
            trainer.journal.log.wal.roll()

    trainer, wrong = opened(), []
    trainer.recover()
    for turn in range(ROUNDS):
        with scarce(leaves[0] if turn == 0 else chance.choice(leaves)):
            trainer.train(trainer.journal.step + 15, behind)
        for _ in range(3):
            clock.advance(1000)
            trainer.journal.wait_checkpoint()  # logging does not resume while one is being written
            trainer.train(trainer.journal.step + 2)
        trainer.journal.wait_synced()
        step = trainer.journal.step
        if trainer.journal.is_suspended or trainer.journal.committed != step:
            wrong.append(f"logging does not go on at step {step}")
        if state_sum(trainer.state) != expected(step):
            wrong.append(f"the state at step {step} is WRONG")
        if chance.random() < 0.3:
            trainer.journal.close()
            trainer = opened()
            if (found := trainer.recover().step) != step:
                wrong.append(f"recovery landed on {found} instead of {step}")
    trainer.journal.close()
    print(json.dumps({"step": trainer.journal.step, "wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
