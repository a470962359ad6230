"""A run goes to a real cluster and comes back: from memory, and from the under-store alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.alluxio.cluster import Cluster
from tests.cli.conftest import STEPS, train
from tranlogs.store import open_store
from tranlogs.testing.stores import put


def tranlogs(*arguments: object) -> str:
    """What a command of TranLogs says, which must succeed."""
    command = [sys.executable, "-c", "from tranlogs.cli import main; main()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_is_pushed_and_pulled(alluxio: Cluster, tmp_path: Path) -> None:
    train(tmp_path / "run")
    tranlogs("push", tmp_path / "run", alluxio.url("/runs", replication=2))

    alluxio.lose(0)  # the other worker has all of it, too
    alluxio.mend()
    said = tranlogs("pull", alluxio.url("/runs/run"), tmp_path / "from memory")
    assert f"step     {STEPS}," in said
    assert "all equal" in tranlogs("verify", tmp_path / "from memory", "--replay")

    alluxio.abandon()
    alluxio.wipe()
    alluxio.start()
    with open_store(alluxio.url("/runs")) as store:
        names = store.names("run")
        assert names
        for name in names:
            status = store.stat(name)
            assert status is not None
            assert (status.is_durable, status.copies) == (True, 0)
        put(store, "run/later", b"more")
        assert store.names("run") == sorted([*names, "run/later"])
        store.delete("run/later")
    tranlogs("pull", alluxio.url("/runs/run"), tmp_path / "from the under-store")
    assert "all equal" in tranlogs("verify", tmp_path / "from the under-store", "--replay")
