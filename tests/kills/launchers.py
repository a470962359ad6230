"""How one life of a script is started: forked from this process, by a warm server of Keras, or as a group under torchrun.

`run_script` is for a script that is a text, and has no Job.

A launcher runs a life to its end and returns its exit status: negative, the signal that killed it. Of a group it is the status
of the process that was to die.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import signal
import subprocess
import sys
import traceback
import types
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tests.kills.job import Start
from tests.support.launcher import Launcher as GroupLauncher


class Launcher(Protocol):
    """Runs lives.

    Attributes:
        job: "module:class" of their Job.
    """

    job: str

    def run(self, start: Start) -> int:
        """Run one life to its end; return its exit status."""

    def folders(self, folder: Path) -> list[Path]:
        """Return where each process of a life leaves what it came to."""

    def said(self) -> str:
        """Return the end of what the last life printed, if the launcher has it."""


class Fork:
    """Forks each life off this process, so that a framework is imported once."""

    def __init__(self, job: str) -> None:
        self.job = job

    def run(self, start: Start) -> int:
        return in_child(start.live)

    def folders(self, folder: Path) -> list[Path]:
        return [folder]

    def said(self) -> str:
        """Return nothing: a child prints where its parent does."""
        return ""


PYTORCH = Fork("tests.kills.pytorch:Job")


def in_child(work: Callable[[], Any]) -> int:
    """Run `work` in a forked child; its exit status (negative: the signal that killed it)."""
    return wait_for(forked(work))


def wait_for(pid: int) -> int:
    """Wait for the end of a forked child; return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(work: Callable[[], Any]) -> int:
    """Run `work` in a forked child; return its id."""
    torch = sys.modules.get("torch")
    alone = torch is None or torch.get_num_threads() == 1
    assert alone, "OpenMP's threads do not survive a fork: the child would wait for them for ever"
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    return pid


def run_script(text: str, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script as `python -c` does, in a fork of this process: an import of torch, and a first step, take ten seconds.

    Args:
        text: the script.
        folder: for what it prints.
        arguments: its `sys.argv[1:]`.
    """
    words, out, err = ["-c", *map(str, arguments)], folder / "stdout", folder / "stderr"
    status = wait_for(forked(lambda: be_script(text, words, out, err)))
    return subprocess.CompletedProcess(words, status, out.read_text(), err.read_text())


def be_script(text: str, words: list[str], out: Path, err: Path) -> NoReturn:
    """Be a process of Python that runs this script, with these words as `sys.argv`, and prints into two files."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    for name in ("", "tranlogs"):
        logging.getLogger(name).handlers.clear()  # those of pytest and of the command line
    warnings.resetwarnings()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # temporary folders of the tests are not the script's
    sys.argv, status = words, 0
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(text, "<string>", "exec"), vars(sys.modules["__main__"]))
    except BaseException:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()  # as the interpreter does
        sys.excepthook(sys.last_type, sys.last_value, sys.last_traceback)  # type: ignore[arg-type]
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


class Server:
    """Has each life forked by a server that has Keras imported, since Keras stays out of the process of the tests.

    Args:
        lab: a `tests.keras.lab.Lab`.
    """

    job = "tests.kills.keras:Job"

    def __init__(self, lab: Any) -> None:
        self._lab, self._output = lab, ""

    def run(self, start: Start) -> int:
        ended = self._lab.run("tests.kills.job.live", start=str(_written(start)))
        self._output = ended.output
        return int(ended.code)

    def folders(self, folder: Path) -> list[Path]:
        return [folder]

    def said(self) -> str:
        return self._output[-6000:]


class Torchrun:
    """Lets torchrun's agent start a group of processes for each life.

    Args:
        launcher: that has the agent.
        world: number of processes.
    """

    job = "tests.kills.pytorch:RankJob"

    def __init__(self, launcher: GroupLauncher, world: int) -> None:
        self._launcher, self.world = launcher, world

    def run(self, start: Start) -> int:
        """Run one life to its end; return the status of the process that was to die, else that of the group."""
        before = _deaths(self.folders(start.folder))
        job = {"world": self.world, "restarts": 0, "function": "tests.kills.job.live"}
        failure = GroupLauncher.ask(self._launcher, job | {"arguments": {"start": str(_written(start))}})
        if not failure:
            return 0
        return -signal.SIGKILL if _deaths(self.folders(start.folder)) > before else 1

    def folders(self, folder: Path) -> list[Path]:
        return [folder / f"rank{rank}" for rank in range(self.world)]

    def said(self) -> str:
        return self._launcher.said()[-6000:]


def _written(start: Start) -> Path:
    start.folder.mkdir(parents=True, exist_ok=True)
    path = start.folder / "start"
    path.write_bytes(pickle.dumps(start))
    return path


def _deaths(folders: list[Path]) -> int:
    """Return how many processes have killed themselves. Of a group, torchrun may tell of one that met the broken connection."""
    return sum(len(path.read_bytes().splitlines()) for folder in folders if (path := folder / "deaths").exists())
