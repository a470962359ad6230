"""examples/ddp.py under the real torchrun: a worker that is killed takes the group down, and torchrun brings it back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.distributed.conftest import ROOT, environment

pytestmark = pytest.mark.crash
pytest.importorskip("sklearn", reason="the example's data come with scikit-learn")


@contextmanager
def torchrun(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The example, started as its first lines say; nothing of it outlives the block."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "3",
        "--monitor-interval",
        "0.05",
        str(ROOT / "examples" / "ddp.py"),
    ]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
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
        process.wait(120)
    finally:
        workers |= set(children(process.pid))  # each is a session of its own, so they are ended one by one
        for pid in [*workers, process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate()


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def workers(pid: int) -> list[int]:
    """Those of them that train."""
    found = [child for child in children(pid) if b"ddp.py" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return sorted(found)


def test_the_example_goes_on_after_sigkill_of_a_worker(tmp_path: Path) -> None:
    lines = []
    with torchrun(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("epoch 3:") and "recovered" not in "".join(lines):
                os.kill(workers(process.pid)[1], signal.SIGKILL)
    told = "".join(lines)
    assert process.returncode == 0, told
    assert "fresh run: step 0\n" in told
    found = re.search(r"recovered to step (\d+) \(.* bit-exact\)", told)
    assert found is not None, told
    assert int(found[1]) >= 4 * 29 - 1  # of four epochs
    epochs = dict.fromkeys(re.findall(r"^epoch (\d+):", told, re.MULTILINE))  # the one that was left may be told twice
    assert list(epochs) == [str(number) for number in range(20)]
    right = re.search(r"done: (\S+) of the digits", told)
    assert right is not None
    assert float(right[1]) > 0.97
