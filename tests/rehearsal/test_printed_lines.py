"""What a process of a rehearsal prints, as the processes that share its output see it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.launcher import environment
from tranlogs.training.rehearsed_process.orders import VARIABLE, Orders

_SCRIPT = """
from tranlogs.training.rehearsed_process.orders import current
current()
print("rank", 0, "loss", 1.5)
print("second")
print("a part of a line ", end="", flush=True)
"""


def test_line_is_written_by_one_system_call(tmp_path: Path) -> None:
    """A socket of packets shows each call: lines of several ranks in one file are mixed where a line takes two."""
    Orders(runs=str(tmp_path)).write(tmp_path)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            stdout=theirs,
            env={**environment(), VARIABLE: str(tmp_path), "PYTHONUNBUFFERED": "1"},
            check=True,
        )
        theirs.close()
        packets = list(iter(lambda: os.read(ours.fileno(), 4096), b""))
    assert packets == [b"rank 0 loss 1.5\n", b"second\n", b"a part of a line "]
