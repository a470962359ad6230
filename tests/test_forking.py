"""The server that forks a process for each job: what a killed process leaves of its lines is no job."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.forking import ForkServer

CHILD = """
import os, signal
from tests.support.forking import say, serve

def work(job):
    if job["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)
    say("did", job["name"])

serve(work)
"""


def test_a_line_for_a_process_that_was_killed_is_no_job(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    server = ForkServer(script)
    try:
        server.start({"name": "first", "dies": True})
        server.wait_for("done")
        server.tell({})  # for the process, which has not read it
        assert server.reap() == -signal.SIGKILL
        server.start({"name": "second", "dies": False})
        assert server.wait_for("did") == "second"
        server.wait_for("done")
        assert server.reap() == 0
    finally:
        server.close()
