"""Groups of processes under torchrun's agent, what they were killed by, and what came out of them."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import cli

__all__ = ["cli"]

ROOT = Path(__file__).parents[2]
_SECONDS_MAX = 300.0
_SEGFAULT = "Fatal Python error: Segmentation fault"
_SEGFAULTS_MAX = {"sparse sgd": 2}  # torch's sparse gradients over gloo do, without a log, too: 1 run in 50

Outcome = list[dict[str, Any]]  # by rank

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


def environment() -> dict[str, str]:
    """For processes that import from this checkout."""
    paths = [str(ROOT), str(ROOT / "integrations"), str(ROOT / "monitor")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


class Launcher:
    """A process that starts groups of workers, one group after the other (launcher.py). All of them are one process group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._errors = open(folder / "errors", "w+")  # noqa: SIM115
        self._process = self._start()
        self._references: dict[tuple[int, str], Outcome] = {}

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env={**environment(), "TOLD": str(self.folder / "told")},
            start_new_session=True,
        )

    def run(self, world: int, name: str, run: Path | None, kills: list[list[Any]] | None = None) -> Outcome:
        """Train one of child.py's loops to its end; what each rank came to.

        Args:
            world: how many ranks.
            name: of the loop.
            run: folder of the run; None trains without a log.
            kills: for each start, who dies when.
        """
        out = self.folder / "out"
        for rank in range(world):
            Path(f"{out}.{rank}").unlink(missing_ok=True)
        arguments = [name, "-" if run is None else str(run), str(out), json.dumps(kills or [])]
        job = {"world": world, "restarts": len(kills or []), "arguments": arguments}
        failure = self.ask(job)
        for seen in range(_SEGFAULTS_MAX.get(name, 0)):  # nothing else is tried again
            if failure and self.said().count(_SEGFAULT) > seen:
                failure = self.ask(job, goes_on=True)
        assert not failure, f"{failure}\n{self.said()[-6000:]}"
        return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(world)]

    def ask(self, job: dict[str, Any], *, goes_on: bool = False) -> str:
        """Run a job; says what went wrong. What an earlier one said and told is kept if it goes on with that."""
        if not goes_on:
            (self.folder / "told").unlink(missing_ok=True)
            self._errors.truncate(0)
            self._errors.seek(0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], _SECONDS_MAX)
        if not ready:  # it would hang for the tests behind this one, too
            self._end()
            self._process = self._start()
            pytest.fail(f"the group did not end within {_SECONDS_MAX} s\n{self.said()[-6000:]}")
        line = self._process.stdout.readline()
        assert line, f"the launcher ended with {self._process.wait()}\n{self.said()[-6000:]}"
        return str(json.loads(line)["failure"])

    def said(self) -> str:
        """What the processes of the last job printed."""
        return (self.folder / "errors").read_text(errors="replace").replace("\0", "")

    def told(self) -> list[dict[str, Any]]:
        """What rank 0 told of each recovery of the last job, in a file: what many processes print may be mixed up."""
        path = self.folder / "told"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def reference(self, world: int, name: str) -> Outcome:
        """What comes out of a loop without a log and without kills."""
        if (world, name) not in self._references:
            self._references[world, name] = self.run(world, name, None)
        return self._references[world, name]

    def close(self) -> None:
        """End all of them."""
        self._end()
        self._errors.close()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    found = Launcher(tmp_path_factory.mktemp("launcher"))
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="session")
def divided(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three ranks that went to its end; to be read only."""
    run = tmp_path_factory.mktemp("divided") / "run"
    launcher.run(3, "plain", run)
    return run


@pytest.fixture
def copied(divided: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(divided, tmp_path / "run"))
