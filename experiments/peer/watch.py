"""One life seen from outside: start it, kill it if that is to be done from outside, and what became of it."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import select
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.life import Life, live
from peer.processes import descendants, kill, still_alive

_FORK = multiprocessing.get_context("fork")  # what is imported need not be imported again; with one thread there is no pool
_SECONDS_MAX = 180.0  # of a life: one that has not ended then hangs
GRACE_SECONDS = 2.0  # for helpers to notice that their trainer is dead


@dataclass(slots=True)
class Outcome:
    """What became of it.

    Attributes:
        heads: moments before a step: its number, seconds since the adapter was made, a digest where it was looked at.
        exit: code, negative for a signal.
        error: what it said when it gave up.
        helpers: processes that it had when it died.
        orphans: those of them that lived on.
        hung: it had to be ended.
    """

    heads: list[dict[str, Any]] = field(default_factory=list)
    exit: int = 0
    error: str = ""
    helpers: list[int] = field(default_factory=list)
    orphans: list[int] = field(default_factory=list)
    hung: bool = False

    @property
    def finished(self) -> int:
        """Steps that were done."""
        return int(self.heads[-1]["head"]) if self.heads else 0


def run(life: Life, chance: random.Random) -> Outcome:
    """Until it has ended."""
    life.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        fifo = Path(place) / "events"
        os.mkfifo(fifo)
        told = os.open(fifo, os.O_RDWR)
        process = _FORK.Process(target=live, args=(life, fifo))
        process.start()
        assert process.pid is not None
        outcome = _follow(life, process, told, chance)
        process.join()
        os.close(told)
    outcome.exit = process.exitcode or 0
    outcome.orphans = still_alive(outcome.helpers, GRACE_SECONDS)
    return outcome


def _follow(life: Life, process: Any, told: int, chance: random.Random) -> Outcome:
    """Read what it tells, and strike."""
    outcome, rest, end = Outcome(), b"", time.monotonic() + _SECONDS_MAX
    while True:
        ready, _, _ = select.select([told], [], [], 0.02)
        if ready:
            *lines, rest = (rest + os.read(told, 1 << 16)).split(b"\n")
            for event in map(json.loads, lines):
                take(event, outcome)
                strike(event, life, process.pid, outcome, chance)
        elif not process.is_alive():
            return outcome
        elif time.monotonic() > end:
            outcome.hung = True
            outcome.helpers = descendants(process.pid)
            kill([process.pid, *outcome.helpers])


def take(event: dict[str, Any], outcome: Outcome) -> None:
    """Note what it tells."""
    if "head" in event:
        outcome.heads.append(event)
    outcome.error = event.get("error", outcome.error)
    outcome.helpers = event.get("helpers", outcome.helpers)


def strike(event: dict[str, Any], life: Life, pid: int, outcome: Outcome, chance: random.Random) -> None:
    """Kill it from outside, if this is the moment."""
    if life.way == "all" and "helpers" in event:
        kill([pid, *outcome.helpers])
    elif life.way == "random" and event.get("head") == life.crash:
        outcome.helpers = descendants(pid)
        time.sleep(chance.random() * event["seconds"] / max(1, len(outcome.heads)))  # within a step of the mean length
        kill([pid])
