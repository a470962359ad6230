"""A run goes to a real cluster while it trains, its machine is lost, and others go on with nothing but the address: from the
memory of workers, and from the under-store alone.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.alluxio.cluster import Cluster
from tests.alluxio.trainer import CHECKPOINT_EVERY, Training, train_when_told
from tests.shipping.ships import marks
from tests.support.launcher import ROOT
from tranlogs.stores import ObjectStatus, open_store

ENVIRONMENT = dict(os.environ) | {"PYTHONPATH": ":".join(map(str, (ROOT, ROOT / "integrations", ROOT / "monitor")))}
TRANLOGS = ("-m", "tranlogs")
_context = multiprocessing.get_context("fork")  # torch is imported here


def tranlogs(*arguments: object) -> str:
    """What a command of TranLogs says, which must succeed."""
    command = [sys.executable, *TRANLOGS, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of Python that is killed at the end of the block."""
    command = [sys.executable, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT) as process:
        try:
            yield process
        finally:
            process.kill()


def train_and_die(alluxio: Cluster, run: Path, url: str) -> int:
    """Train with a monitor beside until the store has some checkpoints and some log behind them; SIGKILL both, and delete the
    disk. Gives the step up to which the run was said to be archived."""
    with ExitStack() as dying:
        told, trainer_told = _context.Pipe()
        trainer = _context.Process(target=train_when_told, args=(run, trainer_told), daemon=True)
        trainer.start()
        dying.callback(trainer.join)
        dying.callback(trainer.kill)
        assert told.recv() == "recovered"
        monitor = dying.enter_context(
            running(*TRANLOGS, "monitor", run, "--store", url, "--set", "max_lag=0.3s", "--interval", "0.3s")
        )

        def is_archived() -> bool:
            assert (trainer.exitcode, monitor.poll()) == (None, None), "one has ended by itself"
            told.send("step")
            archived = marks(run).archived
            return archived > 2 * CHECKPOINT_EVERY and archived % CHECKPOINT_EVERY != 0

        alluxio.wait(is_archived, "the run is archived behind a checkpoint")
        told.send("step")
    said = marks(run).archived
    shutil.rmtree(run)
    return said


def goes_on(training: Training, whole: dict[int, str], steps: int = 7) -> int:
    """Train on; all that it was, from where it began, is what an uninterrupted run is. Gives the step it came to, which has no
    checkpoint: a run that is fetched where its newest checkpoint is has no unit to compute again, and lands there.
    """
    until = training.landed + steps
    if until % CHECKPOINT_EVERY == 0:
        until += 1
    training.train(until)
    if until not in whole:
        raise AssertionError(f"the uninterrupted run is too short for step {until}")
    assert training.digests == {step: whole[step] for step in range(training.landed, until + 1)}
    return until


def statuses(url: str) -> dict[str, ObjectStatus]:
    """What the cluster says of all that it has of the run."""
    with open_store(url) as store:
        found = {name: store.stat(name) for name in store.names("run")}
    return {name: status for name, status in found.items() if status is not None}


def test_a_trainer_its_monitor_and_their_machine_are_lost(
    alluxio: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANLOGS_RECHECK", "1")  # each resume computes its last step again, and is proven
    monkeypatch.setitem(ENVIRONMENT, "TRANLOGS_RECHECK", "1")
    url = alluxio.url("/runs", replication=2)
    said = train_and_die(alluxio, tmp_path / "old/run", url)

    # Warm: out of the memory of workers.
    tranlogs("pull", alluxio.url("/runs/run"), tmp_path / "pulled/run")
    pulled = Training(tmp_path / "pulled/run")
    assert pulled.landed >= said - 1
    whole = Training(tmp_path / "whole/run").train(pulled.landed + 24).digests
    came_to = goes_on(pulled, whole)
    tranlogs("push", tmp_path / "pulled/run", url)
    by_address = Training(tmp_path / "by address/run", store=url)
    assert by_address.landed == came_to - 1
    came_to = goes_on(by_address, whole)
    assert marks(tmp_path / "by address/run").archived == came_to
    alluxio.wait(lambda: all(status.is_durable for status in statuses(url).values() if status.is_complete), "persisted")

    # Cold: another cluster, over the same under-store.
    alluxio.abandon()
    alluxio.wipe()
    alluxio.start()
    found = statuses(url)
    assert found
    assert {(status.is_complete, status.is_durable, status.copies) for status in found.values()} == {(True, True, 0)}
    tranlogs("pull", alluxio.url("/runs/run"), tmp_path / "pulled cold/run")
    pulled = Training(tmp_path / "pulled cold/run")
    by_address = Training(tmp_path / "by address cold/run", store=url)
    assert pulled.landed == by_address.landed == came_to - 1
    assert goes_on(pulled, whole) == goes_on(by_address, whole)
