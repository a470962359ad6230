"""A group that hangs or has lost its agent ends with its log sealed. A start beside a process that still writes is refused."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.conftest import ROOT, environment
from tests.distributed.test_example import torchrun, workers
from tests.support.ports import free_ports
from tranlogs.catalog import Catalog
from tranlogs.journal import JournalPaths

pytestmark = pytest.mark.crash

_SECONDS_MAX = 300.0
_STEPS = 6


def pair(run: Path, until: int, *, hangs: bool, **variables: str) -> list[subprocess.Popen[str]]:
    """Two processes that are a group, started by hand."""
    [port] = free_ports(1)
    around = {**environment(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", **variables}
    command = [sys.executable, "-m", "tests.distributed.elastic_child", str(run), str(until), str(int(hangs))]
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**around, "RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    """Until it says so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word):
            return
    pytest.fail(f"it ended without {word!r}: {process.communicate()[1][-3000:]}")


def sealed(run: Path, rank: int) -> int:
    """The step up to which a rank's log is sealed and synced; -1 if a part of it is not."""
    catalog = Catalog.open(JournalPaths.of(run, rank).folder)
    try:
        marks = catalog.watermarks()
        is_open = any(row.state == "open" for row in catalog.segments())
        return -1 if is_open or marks.synced != marks.committed else marks.committed
    finally:
        catalog.close()


def test_a_group_that_hangs_is_told_to_end_and_the_next_one_is_refused_until_all_have_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    old = pair(run, _STEPS, hangs=True)
    refused: list[subprocess.Popen[str]] = []
    new: list[subprocess.Popen[str]] = []
    try:
        for process in old:
            wait_for(process, "ready")
        old[0].terminate()  # it sits in a collective
        said = old[0].communicate(timeout=_SECONDS_MAX)[1]
        assert old[0].returncode == -signal.SIGTERM, said
        assert f"SIGTERM: steps up to {_STEPS} are safe (the log is sealed and synced)" in said
        assert sealed(run, 0) == _STEPS
        refused = pair(run, _STEPS + 3, hangs=False)  # rank 1 is stopped, and holds its journal
        said = refused[1].communicate(timeout=_SECONDS_MAX)[1]
        assert refused[1].returncode
        assert f"process {old[1].pid} on host {socket.gethostname()} writes this run" in said
        refused[0].kill()
        refused[0].communicate()
        old[1].kill()
        assert old[1].wait(_SECONDS_MAX) == -signal.SIGKILL
        new = pair(run, _STEPS + 3, hangs=False)
        told = [process.communicate(timeout=_SECONDS_MAX) for process in new]
        assert [process.returncode for process in new] == [0, 0], told
        assert [out for out, _ in told] == [f"recovered {_STEPS}\n"] * 2
        assert sealed(run, 1) == _STEPS + 3
    finally:
        for process in [*old, *refused, *new]:
            process.kill()
            process.communicate()


@pytest.mark.sampled(0)
def test_workers_of_a_torchrun_that_was_killed_end_and_the_next_one_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the example's data come with scikit-learn")
    lines: list[str] = []
    with torchrun(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("epoch 2:"):
                break
        orphans = [os.pidfd_open(pid) for pid in workers(process.pid)]
        os.kill(process.pid, signal.SIGKILL)
        for orphan in orphans:
            assert select.select([orphan], [], [], _SECONDS_MAX)[0], "an orphan lives on"
            os.close(orphan)
        lines += process.stdout.readlines()
    told = "".join(lines)
    assert len(orphans) == 2
    found = re.findall(r"torchrun's process \d+, which started this one, is gone: steps up to (\d+) are safe", told)
    assert len(found) == 2, told
    lines = []
    with torchrun(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("epoch ") and process.poll() is None:
                process.terminate()  # torchrun tells its workers
    again = "".join(lines)
    landed = re.search(r"recovered to step (\d+) \(.* bit-exact\)", again)
    assert landed is not None, again
    assert int(landed[1]) == min(map(int, found))
    assert len(re.findall(r"SIGTERM: steps up to \d+ are safe \(the log is sealed and synced\)", again)) == 2, again
