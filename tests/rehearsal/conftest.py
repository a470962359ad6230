"""`tranlogs rehearse`, called in a process that is forked off, on a script of this folder or one of `SCRIPTS`."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kills.launchers import forked, wait_for
from tests.support.launcher import environment
from tranlogs.cli import main
from tranlogs.rehearsal import arms

SCRIPTS = {
    "daemon.py": """\
'''Puts itself into the background, as daemons do.'''

import os
import time

if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print(f"daemon {os.getpid()}", flush=True)
time.sleep(300)
""",
    "fills_disk.py": """\
'''Writes more than the rehearsal may.'''

import time

with open("large.bin", "wb") as file:
    file.write(bytes(4 << 20))
time.sleep(300)
""",
    "never_steps.py": """\
'''Never takes a step, and ignores every signal that it can; it would use tranlogs_torch if it came to that.'''

import signal
import time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
while True:
    time.sleep(1)
""",
    "sleeps.py": """\
'''Starts a process in a session of its own, and sleeps.'''

import subprocess
import time

subprocess.Popen(["sleep", "300"], start_new_session=True)
open("started", "w").close()
time.sleep(300)
""",
    "waits.py": """\
'''Waits for input.'''

name = input("name of the experiment: ")
print(name)
""",
    "not_wrapped.py": """\
'''A loop that does not use the library: it saves what it has learned, and never loads it.'''

import time

weight = 0.0
for step in range(60):
    weight += 0.1 * (1 - weight)
    time.sleep(0.02)
    print(f"step {step}: weight {weight:.6f}")
    if step % 10 == 0:
        with open("model.pt", "w") as file:
            print(weight, file=file)
""",
}


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal has said.

    Attributes:
        code: exit code.
        verdict: the verdict, as JSON has it.
        folder: the working folder of the script.
        left: processes that name a folder of the rehearsal and are alive.
    """

    code: int
    verdict: dict[str, Any]
    folder: Path
    left: list[int]

    @property
    def kinds(self) -> list[str]:
        """What differs."""
        return [difference["kind"] for difference in self.verdict["differences"]]

    @property
    def notes(self) -> str:
        return "\n".join(self.verdict["notes"])


Rehearse = Callable[..., Rehearsed]


@pytest.fixture
def rehearse(tmp_path: Path) -> Rehearse:
    """Rehearse a script; print the verdict, and demand that nothing is left of the rehearsal."""
    folder, scratch = tmp_path / "project", tmp_path / "scratch"

    def call(script: str, *options: str, start: tuple[str, ...] = (), kind: str | None = None) -> Rehearsed:
        folder.mkdir()
        scratch.mkdir()
        if script in SCRIPTS:
            (folder / script).write_text(SCRIPTS[script])
        else:
            shutil.copy(Path(__file__).parent / "scripts" / script, folder)
        before = sorted(folder.iterdir())
        command = ["--seed", "3", "--json", *options, "--", sys.executable, *start, script]
        command += [] if kind is None else [kind]
        code = wait_for(begin(folder, scratch, command, tmp_path / "said"))
        said = (tmp_path / "said").read_text()
        assert said, (tmp_path / "said.err").read_text()
        print(said, (tmp_path / "said.err").read_text())
        assert sorted(folder.iterdir()) == before, "the rehearsal has written into the script's folder"
        assert not list(scratch.glob("tranlogs-*"))
        return Rehearsed(code, json.loads(said), folder, find_processes(scratch))

    return call


def begin(folder: Path, scratch: Path, command: list[str], said: Path) -> int:
    """Begin `tranlogs rehearse` with these words in a folder; return the id of its process, which writes into two files."""

    def work() -> None:
        os.environ.update(environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TMPDIR": str(scratch)})
        arms._HARMLESS = tuple(name for name in arms._HARMLESS if name != tempfile.gettempdir())
        tempfile.tempdir = None  # as it is in a new process
        logging.getLogger().handlers.clear()  # those of pytest
        for number, path in ((1, said), (2, said.with_name(f"{said.name}.err"))):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(folder)
        try:
            main(["rehearse", *command])
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(int(end.code or 0))

    return forked(work)


def find_processes(scratch: Path) -> list[int]:
    """Return the processes whose environment names a folder of a rehearsal."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if str(scratch).encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found
