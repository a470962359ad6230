"""A life under DLRover's agent, which stands above the trainer, saves when it dies, and starts it again.

python -m peer.agent ...     # dlrover-run, made to start on this torch
python -m peer.agent_life    # the trainer
python -m peer.agent_cost    # one whose steps are timed
"""

from __future__ import annotations

import functools
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from peer.flash import run_id
from peer.life import Life
from peer.processes import descendants, kill, still_alive
from peer.watch import GRACE_SECONDS, Outcome, strike, take

_SECONDS_MAX = 150.0  # for both lives; the agent looks every few seconds whether its trainer lives
_STEPS_MORE = 400  # a kill that comes from outside, at a moment, comes that much later at most
_OPTIONS = ("--standalone", "--nproc_per_node=1", "--max_restarts=3", "--save-at-breakpoint", "--monitor_interval=1")


def run_twice(life: Life, after: int, chance: random.Random) -> tuple[Outcome, Outcome]:
    """The life that ends by the fault, and the one that the agent starts; or, if the agent dies, too, a new agent."""
    assert life.crash is not None
    more = _STEPS_MORE if life.way in ("moment", "random") else 2
    until = life.crash + after + more  # by then it has gone on after the crash
    second = replace(life, crash=None, fill=None, until=until, way="head")
    with _listening(life) as told, tempfile.TemporaryDirectory() as place:
        plans = [Path(place) / name for name in ("first", "second")]
        for plan, one in zip(plans, (life, second), strict=True):
            plan.write_text(json.dumps({**asdict(one), "folder": str(one.folder)}))
        words = ["peer.agent_life", str(life.folder), *map(str, plans)]
        outcomes = _follow(words, life, told, chance)
        if len(outcomes) == 1 and life.way == "all":
            outcomes += _follow(words, life, told, chance)
    dead, again = [*outcomes, Outcome(exit=1, error="it was not started again")][:2]
    dead.exit = -9 if dead.heads and not dead.error else 1
    again.exit = again.exit or (0 if again.heads and again.finished == second.until else 1)
    return dead, again


def run_once(folder: Path, words: list[str], log: Path, seconds: float) -> bool:
    """A module and its arguments as the trainer, to its end; False if it had to be ended. All that it started ends with it."""
    agent = _start(folder, words, log)
    seen, end = {agent.pid}, time.monotonic() + seconds
    while agent.poll() is None and time.monotonic() < end:
        seen.update(descendants(agent.pid))
        time.sleep(0.2)
    is_over = agent.poll() is not None
    kill(sorted(seen))
    agent.wait()
    return is_over


def _start(folder: Path, words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """An agent, whose trainer is a module with arguments; `folder` names its run."""
    environment = {
        **os.environ,
        "ELASTIC_JOB_NAME": run_id(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path[1:]]),
    }
    command = [sys.executable, "-W", "ignore", "-m", "peer.agent", *_OPTIONS, "-m", *words]
    with open(log, "a") as said:
        return subprocess.Popen(command, env=environment, stdout=said, stderr=said)


@contextmanager
def _listening(life: Life) -> Iterator[int]:
    life.folder.mkdir(parents=True, exist_ok=True)
    fifo = life.folder / "events"
    os.mkfifo(fifo)
    told = os.open(fifo, os.O_RDWR)
    try:
        yield told
    finally:
        os.close(told)


def _follow(words: list[str], life: Life, told: int, chance: random.Random) -> list[Outcome]:
    """Until the agent has ended; an outcome for each trainer that it has started."""
    agent = _start(life.folder, words, life.folder / "said")
    outcomes: list[Outcome] = []
    rest, end, pid, seen = b"", time.monotonic() + _SECONDS_MAX, 0, {agent.pid}
    while time.monotonic() < end:
        seen.update(descendants(agent.pid))
        if select.select([told], [], [], 0.05)[0]:
            *lines, rest = (rest + os.read(told, 1 << 16)).split(b"\n")
            for event in map(json.loads, lines):
                if "born" in event:
                    pid = event["born"]
                    outcomes.append(Outcome())
                take(event, outcomes[-1])
                if len(outcomes) == 1:
                    if life.way == "all" and "helpers" in event:
                        kill([agent.pid, *descendants(agent.pid)])
                    else:
                        strike(event, life, pid, outcomes[0], chance)
        elif agent.poll() is not None:
            break
    kill([agent.pid])
    agent.wait()
    left = still_alive(sorted(seen), GRACE_SECONDS)
    if outcomes:
        outcomes[0].orphans = left
    return outcomes


def main() -> None:
    """dlrover-run; a handler of processes that it makes lacks an argument that newer versions of torch ask for."""
    from dlrover.trainer.torch import elastic_run

    elastic_run.SubprocessHandler = functools.partial(elastic_run.SubprocessHandler, numa_options=None)
    elastic_run.main()


if __name__ == "__main__":
    main()
