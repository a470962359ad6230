"""A group that hangs or has lost its agent ends with its log sealed, and the next one goes on; the example does so, too."""

from __future__ import annotations

import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.conftest import Groups
from tests.kills.launchers import forked, wait_for
from tests.support.examples import EXAMPLES
from tests.support.launcher import environment
from tests.support.ports import free_ports
from tranlogs.catalog import Catalog
from tranlogs.journal import JournalPaths
from tranlogs_torch import LoggedOptimizer

pytestmark = pytest.mark.crash

_SECONDS_MAX = 300.0
_STEPS, _EPOCHS = 6, 8


class Member:
    """One of two processes that train together without torchrun.

    Args:
        run: folder of the run.
        rank: of the process.
        port: of the first rank's store.
        until: the step to which it trains.
        hangs: if rank 1 then stops itself, and rank 0 enters one more step, whose sum never comes.
    """

    def __init__(self, run: Path, rank: int, port: int, until: int, *, hangs: bool) -> None:
        self.file = run.parent / f"said {port} {rank}"
        self.file.touch()
        self._run, self._rank, self._port, self._until, self._hangs = run, rank, port, until, hangs
        self.pid = forked(self._live)
        self._status: int | None = None

    def said(self) -> str:
        """Return what it printed."""
        return self.file.read_text()

    def end(self) -> int:
        """Wait until it has ended; return its exit status."""
        if self._status is None:
            self._status = wait_for(self.pid)
        return self._status

    def kill(self) -> None:
        """End it by SIGKILL, unless it has ended."""
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.end()

    def _live(self) -> None:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port), "WORLD_SIZE": "2", "RANK": str(self._rank)}
        os.environ.update(where | {"GLOO_SOCKET_IFNAME": "lo"})
        out = os.open(self.file, os.O_WRONLY | os.O_APPEND)
        os.dup2(out, 1), os.dup2(out, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        for name in ("", "tranlogs"):
            logging.getLogger(name).handlers.clear()  # those of pytest and of the command line
        dist.init_process_group("gloo")
        torch.manual_seed(1)
        model = DistributedDataParallel(nn.Linear(4, 2))
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        grace = 60.0 if self._rank == 0 else 0.5
        optimizer = LoggedOptimizer(inner, self._run, model, segment_bytes=1 << 20, grace_seconds=grace)
        print("recovered", optimizer.recover().step)
        for step in optimizer.steps(self._until + self._hangs):
            if step == self._until:
                print("ready")
                if self._rank == 1:
                    os.kill(os.getpid(), signal.SIGSTOP)
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()
        dist.barrier()


def sealed(run: Path, rank: int) -> int:
    """Return the step up to which a rank's log is sealed and synced; -1 if a part of it is not."""
    catalog = Catalog.open(JournalPaths.of(run, rank).folder)
    try:
        marks = catalog.watermarks()
        is_open = any(row.state == "open" for row in catalog.segments())
        return -1 if is_open or marks.synced != marks.committed else marks.committed
    finally:
        catalog.close()


def test_a_group_that_hangs_is_told_to_end_and_the_next_one_is_refused_until_all_have_ended(tmp_path: Path) -> None:
    run, all_members = tmp_path / "run", list[Member]()

    def pair(until: int, *, hangs: bool = False) -> list[Member]:
        [port] = free_ports(1)
        members = [Member(run, rank, port, until, hangs=hangs) for rank in range(2)]
        all_members.extend(members)
        return members

    try:
        old = pair(_STEPS, hangs=True)
        deadline = time.monotonic() + _SECONDS_MAX
        while not all("ready" in member.said() for member in old):
            assert time.monotonic() < deadline, [member.said() for member in old]
            time.sleep(0.02)
        os.kill(old[0].pid, signal.SIGTERM)  # it sits in a collective
        assert old[0].end() == -signal.SIGTERM, old[0].said()
        assert f"SIGTERM: steps up to {_STEPS} are safe (the log is sealed and synced)" in old[0].said()
        assert sealed(run, 0) == _STEPS
        refused = pair(_STEPS + 3)  # rank 1 is stopped, and holds its journal
        assert refused[1].end() == 1
        assert f"process {old[1].pid} on host {socket.gethostname()} writes this run" in refused[1].said()
        refused[0].kill()
        old[1].kill()
        new = pair(_STEPS + 3)
        assert [member.end() for member in new] == [0, 0], [member.said() for member in new]
        assert [member.said() for member in new] == [f"recovered {_STEPS}\n"] * 2
        assert sealed(run, 1) == _STEPS + 3
    finally:
        for member in all_members:
            member.kill()


@contextmanager
def torchrun(script: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a script as the first lines of examples/ddp.py say; nothing of it outlives the block."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    variables = {**environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    variables.pop("TRANLOGS_RECHECK", None)  # as users have it
    process = subprocess.Popen(
        [*command, "--monitor-interval", "0.05", script.name],
        cwd=script.parent,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    workers: set[int] = set()
    try:
        workers |= set(children(process.pid))
        yield process
    finally:
        workers |= set(children(process.pid))  # each is a session of its own, so they are ended one by one
        for pid in [*workers, process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def workers_of(pid: int) -> list[int]:
    """Return those of them that train."""
    return sorted(child for child in children(pid) if b"ddp.py" in Path(f"/proc/{child}/cmdline").read_bytes())


def test_the_example_goes_on_after_sigkill_of_torchrun(groups: Groups, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the example's data come with scikit-learn")
    text = (EXAMPLES / "ddp.py").read_text()
    assert text.count("optimizer.epochs(20)") == 1
    script = tmp_path / "ddp.py"
    script.write_text(text.replace("optimizer.epochs(20)", f"optimizer.epochs({_EPOCHS})"))
    lines = list[str]()
    with torchrun(script) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("epoch 2:"):
                break
        orphans = [os.pidfd_open(pid) for pid in workers_of(process.pid)]
        os.kill(process.pid, signal.SIGKILL)
        for orphan in orphans:
            assert select.select([orphan], [], [], _SECONDS_MAX)[0], "an orphan lives on"
            os.close(orphan)
        lines += process.stdout.readlines()
    told = "".join(lines)
    assert len(orphans) == 2
    assert "fresh run: step 0 (the first steps measure whether a log of about 168.0 KiB costs more than 5 % of a step; " in told
    safe = re.findall(r"torchrun's process \d+, which started this one, is gone: steps up to (\d+) are safe", told)
    assert len(safe) == 2, told
    again = groups(2).calls("tests.distributed.scripts.run_example", path=str(script))
    landed = re.search(r"recovered to step (\d+) \(.* (being proven|not verified)\)", again)
    proven = re.search(
        r"(\d+) (?:was|were) computed again on all 2 ranks: .* are equal to those before the crash, bit for", again
    )
    assert landed is not None, again
    if proven is None:  # at a checkpoint, behind which nothing was recorded yet
        assert landed[2] == "not verified", again
        assert "the log does not hold the newest one with a step" in again
    reached = int((proven or landed)[1])
    assert min(map(int, safe)) - reached in (0, 1), again
    assert reached >= 3 * 29 - 10  # of three epochs; the newest steps are in no record yet if none has tensors
    epochs = dict.fromkeys(re.findall(r"^epoch (\d+):", told + again, re.MULTILINE))  # one that was left may be told twice
    assert list(epochs) == [str(number) for number in range(_EPOCHS)]
    right = re.search(r"done: (\S+) of the digits", again)
    assert right is not None
    assert float(right[1]) > 0.9
