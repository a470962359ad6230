"""Alluxio as a store on a real cluster; and a run that outlives its machine, and at last the cluster.

The last test of the folder: it leaves no cluster behind.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.alluxio.cluster import Cluster, Settings
from tests.alluxio.trainer import CHECKPOINT_EVERY, Training, train_when_told
from tests.shipping.ships import marks
from tests.support.launcher import ROOT
from tests.support.stores import MIB, StoreConformance, put, read
from tranlogs.base.errors import StoreRefused, StoreUnavailable
from tranlogs.stores import ObjectStatus, Store, open_store
from tranlogs.stores.alluxio import AlluxioStore
from tranlogs.stores.check import check_store


class TestAlluxio(StoreConformance):
    large = 17 * MIB  # more than a block

    @pytest.fixture
    def store(self, alluxio: Cluster) -> Iterator[Store]:
        with open_store(alluxio.url("/conformance")) as store:
            yield store


@pytest.fixture
def store(alluxio: Cluster) -> Iterator[Store]:
    with open_store(alluxio.url(f"/{uuid.uuid4().hex}", replication=2)) as store:
        yield store


def test_what_is_written_once_reaches_the_under_store(alluxio: Cluster, store: Store) -> None:
    put(store, "run/segment", b"content" * 1000)
    status = store.stat("run/segment")
    assert status is not None
    assert (status.copies, status.is_complete) == (2, True)
    with pytest.raises(StoreUnavailable, match="already exists"):
        put(store, "run/segment", b"second")
    for name in ("a?b", "a\\b"):  # which Alluxio takes for others
        with pytest.raises(StoreRefused, match="the name of an object in Alluxio"):
            put(store, name, b"1")
    alluxio.wait(lambda: is_durable(store, "run/segment"), "persisted")
    folder = urlsplit(store.url).path.lstrip("/")
    assert (alluxio.under_store / folder / "run/segment").read_bytes() == b"content" * 1000
    assert read(store, "run/segment") == b"content" * 1000


def test_what_is_unfit_for_runs_is_found_by_the_check(alluxio: Cluster, store: Store) -> None:
    """Other write types than asynchronous persistence, and an under-store that cannot be written."""
    words = {"THROUGH": "0 of 1 copies in the memory of workers", "MUST_CACHE": "the write type is not honoured"}
    for write_type, said in words.items():
        port = alluxio.settings.ports["proxy.web"]
        with AlluxioStore("127.0.0.1", port, "/check", write_type=write_type) as other:
            demand_problem(other, said)
    place = alluxio.under_store / ".alluxio_ufs_persistence"  # where it writes what it is persisting
    shutil.rmtree(place, ignore_errors=True)
    place.touch()
    try:
        demand_problem(store, "the object is not durable")
        put(store, "object", b"1")
        assert not is_durable(store, "object")
    finally:
        place.unlink()
    alluxio.wait(lambda: is_durable(store, "object"), "persisted")


def demand_problem(store: Store, words: str) -> None:
    """Check that `tranlogs verify URL` finds a problem that begins with some words."""
    problem = check_store(store, nbytes=1000, patience_seconds=1).problem
    assert problem is not None
    assert problem.startswith(words), problem


def is_durable(store: Store, name: str) -> bool:
    """Whether an object is persisted."""
    status = store.stat(name)
    return status is not None and status.is_durable


# A trainer, its monitor and their machine are lost.

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

    # Cold: another cluster, a small one that persists nothing, over the same under-store.
    alluxio.abandon()
    with Cluster(tmp_path / "cluster", Settings(workers=1, persists=False), alluxio.under_store) as cold:
        found = statuses(cold.url("/runs"))
        assert found
        assert {(status.is_complete, status.is_durable, status.copies) for status in found.values()} == {(True, True, 0)}
        tranlogs("pull", cold.url("/runs/run"), tmp_path / "pulled cold/run")
        pulled = Training(tmp_path / "pulled cold/run")
        by_address = Training(tmp_path / "by address cold/run", store=cold.url("/runs"))
        assert pulled.landed == by_address.landed == came_to - 1
        assert goes_on(pulled, whole) == goes_on(by_address, whole)
