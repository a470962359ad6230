"""Train, die, come back, compare: what the tests of the PyTorch integration share.

A script is a function of an `Attempt`: it builds everything anew, calls `attempt.start`, and trains. The same script runs
unlogged and uninterrupted for what is right, and logged in forked children that die at a tick of its body.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xxhash

from tests.kills.job import Outcome, flatten
from tests.kills.judge import differences
from tests.kills.launchers import in_child
from tests.kills.pytorch import Job, contents, with_plain_loops
from tranlogs_torch import RecoveryReport

__all__ = ["Outcome", "contents", "differences", "flatten", "in_child", "with_plain_loops"]

Script = Callable[["Attempt"], None]


class Attempt(Job):
    """One run of a script, which may die at a tick of its body.

    Args:
        run: folder of the run; None trains without TranLogs.
        die_at: tick at which the process dies by SIGKILL; None for never.
        options: for `LoggedOptimizer`.
    """

    def __init__(self, run: Path | None = None, die_at: int | None = None, **options: Any) -> None:
        super().__init__(Path(f"{run}.life"), run, **options)
        self.die_at = die_at
        self.ticks, self._clock = 0, iter(range(1, 1 << 62))
        self.seen: dict[int, int] = {}
        self._outcome: Outcome | None = None

    def start(self, optimizer: Any, /, **tracked: Any) -> None:
        """Track and recover."""
        super().start(optimizer, **tracked)
        if self.run is not None:
            self.final_report = lambda: optimizer.report

    def tell(self, report: RecoveryReport) -> None:
        """Print nothing."""

    def saw(self, number: int, batch: Any) -> None:
        """Compare the batch of this number; it is remembered over the death of the process."""
        digest = xxhash.xxh3_64_intdigest(repr(flatten(batch)).encode())
        self.seen[number] = digest
        if self.run is not None:
            with open(f"{self.run}.seen", "a") as file:
                file.write(f"{number} {digest}\n")
        self.say(number)

    def say(self, number: int) -> None:
        """The body of this batch begins: a killer may wait for it."""

    def saw_next(self, batch: Any) -> None:
        """`saw`, with the number that follows the last one."""
        before = self.reports[0].batch if self.reports else 0
        self.saw(max(self.seen, default=before - 1) + 1, batch)

    def end(self) -> None:
        """Fix the outcome as it is now: the random states of the process are those of the next attempt soon."""
        self._outcome = super().outcome()

    def outcome(self) -> Outcome:
        """Return all that is compared: as it was at the end, or else as it is now."""
        return super().outcome() if self._outcome is None else self._outcome

    def tick(self) -> None:
        """A place of the body where the process can die."""
        self.ticks = next(self._clock)  # a loop that ticks is to carry nothing of its own that is named
        if self.ticks == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def uninterrupted(script: Script) -> Attempt:
    """Run a script without TranLogs."""
    attempt = Attempt()
    script(attempt)
    attempt.end()
    return attempt


def prove_exact(
    script: Script,
    run: Path,
    die_at: Sequence[int] = (),
    *,
    is_exact: bool | None = True,
    right: Attempt | None = None,
    **options: Any,
) -> Attempt:
    """Die at each of these ticks (of each attempt), finish, and compare with the run that is right: else the unlogged one."""
    right = right or uninterrupted(script)
    for tick in die_at:
        status = in_child(lambda tick=tick: script(Attempt(run, tick, **options)))
        assert status == -signal.SIGKILL, f"the child was to die at tick {tick}; its exit status is {status}"
    last = Attempt(run, **options)
    script(last)
    found = differences(last.outcome(), right.outcome())
    assert not found, found
    for line in Path(f"{run}.seen").read_text().splitlines() if right.seen else ():
        number, digest = map(int, line.split())
        assert right.seen[number] == digest, f"batch {number} differs"
    if last.reports:
        report = last.final_report()
        assert report.exact is is_exact, report
    return last
