"""Toy trainers in processes of their own, which are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from tests.support.forking import ForkServer
from tests.support.toy import ToyState

CHILD = Path(__file__).with_name("toy_child.py")
SIZES = (7, 300, 2500)
UNTIL = 26


def state_sum(state: ToyState) -> int:
    return xxh3_64_intdigest(state.everything())


_state = ToyState(SIZES)
_sums = [state_sum(_state)]


def expected(step: int) -> int:
    """What a run that was never killed has after a step."""
    while len(_sums) <= step:
        _state.take_step(len(_sums))
        _sums.append(state_sum(_state))
    return _sums[step]


@dataclass
class Outcome:
    """What a trainer said before it ended."""

    status: int
    recovered: int | None = None  # the step that it came back to
    committed: int = 0
    state: int = 0  # the sum of what it came back to
    timeline: int = 0
    seconds: float = 0.0  # until it had come back, from opening the run on
    refused: str = ""  # why it cannot be wound back
    was_suspended: bool = False
    has_made_room: bool = False  # of older checkpoints, on a full disk
    counts: dict[str, int] = field(default_factory=dict)
    forked: list[int] = field(default_factory=list)  # how its children ended

    @property
    def was_killed(self) -> bool:
        return self.status == -signal.SIGKILL


class Trainers:
    """Forks trainers and kills them.

    Args:
        compares: whether all that they come back to must be what a run has that was neither killed nor wound back.
    """

    def __init__(self, *, compares: bool = True) -> None:
        self.compares = compares
        self._server = ForkServer(CHILD)

    def close(self) -> None:
        """End the server."""
        self._server.close()

    def run(
        self,
        run: Path,
        *,
        kill_after: tuple[int, float] | None = None,
        until: int = UNTIL,
        failpoints: str = "",
        writer: str = "direct",
        durability: str = "machine",
        settles: bool = True,
        meanwhile: Callable[[int], None] = lambda lines: None,
        **more: Any,
    ) -> Outcome:
        """Train in a child.

        Args:
            run: the run's folder.
            kill_after: kill the child so many lines and seconds after its start.
            until: the last step.
            failpoints: as in TRANLOGS_FAILPOINTS.
            writer: of the journal.
            durability: of the journal.
            settles: whether all threads are idle between steps, so that every point is passed at a known place.
            meanwhile: called with the number of lines that it has said, behind each.
            more: of the job (toy_child.py).
        """
        job: dict[str, Any] = {"run": str(run), "until": until, "failpoints": failpoints, "writer": writer}
        pid = self._server.start({**job, "durability": durability, "settles": settles, **more})
        outcome, lines = Outcome(0), 0
        while True:
            if kill_after is not None and lines == kill_after[0]:
                time.sleep(kill_after[1])  # any moment will do: the point is that it is not a known one
                os.kill(pid, signal.SIGKILL)
                kill_after = None
            word, rest = self._server.hear()
            lines += 1
            meanwhile(lines)
            if word == "done":
                outcome.status = self._server.reap()
                return outcome
            self._note(outcome, word, rest.split())

    def _note(self, outcome: Outcome, word: str, rest: list[str]) -> None:
        if word == "recovered":
            outcome.recovered = outcome.committed = int(rest[0])
            assert rest[1] == "True"
            outcome.state, outcome.seconds = int(rest[2]), float(rest[3])
            if self.compares:
                assert outcome.state == expected(outcome.recovered), f"wrong state at step {outcome.recovered}"
        elif word == "timeline":
            outcome.timeline = int(rest[0])
        elif word == "refused":
            outcome.refused = " ".join(rest)
        elif word == "suspended":
            outcome.was_suspended = True
        elif word == "full":
            outcome.has_made_room = True
        elif word == "count":
            outcome.counts[rest[0]] = int(rest[1])
        elif word == "forked":
            outcome.forked.append(int(rest[0]))
        elif word.isdigit():
            outcome.committed = int(word)
