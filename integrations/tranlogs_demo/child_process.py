"""Children of the demo, seen from the parent: start one, follow its events, kill it."""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tranlogs.base.errors import TranLogsError

from .job import Job, read_phase

_WARM_UP = 3  # batches that are not timed: memory is touched for the first time


class ChildFailed(TranLogsError):
    """A child of the demo ended with an error of its own."""

    def __init__(self, job: Job, code: int) -> None:
        output = job.log.read_text(errors="replace").strip().splitlines()
        super().__init__(
            f"the training process {job.name!r} ended with exit code {code}: {output[-1] if output else 'it printed nothing'}. "
            f"The whole output is in {job.log}"
        )


@dataclass(frozen=True, slots=True)
class Kill:
    """The moment of the kill: `share` of a median step after the start of a batch. Batches are counted from 1."""

    batch: int
    share: float


@dataclass(slots=True)
class Account:
    """Events of a child process.

    Attributes:
        built, recovered, finished: the events of these names; empty where it did not come to them.
        batch: how many batches are done, over the whole run.
        loss: of the newest of them.
        digests: of the batches that it began.
        began_at: when.
        died_in: where in a step it was killed; None where it lived.
    """

    built: dict[str, Any] = field(default_factory=dict)
    recovered: dict[str, Any] = field(default_factory=dict)
    finished: dict[str, Any] = field(default_factory=dict)
    batch: int = 0
    loss: float = 0.0
    digests: list[str] = field(default_factory=list)
    began_at: list[float] = field(default_factory=list)
    died_in: str | None = None

    def hear(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        kind = event.pop("event")
        self.loss = event.get("loss") or self.loss
        if kind == "batch":
            self.batch = self.recovered.get("batch", 0) + len(self.digests)
            self.digests.append(event["digest"])
            self.began_at.append(event["at"])
        else:
            setattr(self, kind, event)

    @property
    def step_seconds(self) -> list[float]:
        """Time from batch to batch, without the first few."""
        moments = self.began_at[_WARM_UP:]
        return [b - a for a, b in itertools.pairwise(moments)]


def follow(job: Job, watch: Callable[[Account], None], kill: Kill | None = None) -> Account:
    """Run a child to its end, or until it is killed; `watch` is called after each event.

    Raises:
        ChildFailed: it ended otherwise.
    """
    account = Account()
    command = [sys.executable, "-m", f"{__package__}.child", job.to_json()]
    with (
        open(job.log, "wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as child,
    ):
        assert child.stdout is not None
        try:
            for line in child.stdout:
                account.hear(json.loads(line))
                watch(account)
                if kill is not None and len(account.digests) == kill.batch and child.returncode is None:
                    time.sleep(kill.share * statistics.median(account.step_seconds or [0.0]))
                    child.kill()
                    child.wait()  # its earlier events stay in the pipe
        except BaseException:
            child.kill()
            raise
    if kill is not None and child.returncode == -signal.SIGKILL:
        account.died_in = read_phase(job)
    elif child.returncode != 0 or not account.finished:
        raise ChildFailed(job, child.returncode)
    return account
