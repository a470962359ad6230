"""Groups of processes under torchrun's agent, what they were killed by, and what came out of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import cli
from tests.support import launcher as launchers
from tests.support.launcher import ROOT, environment

__all__ = ["ROOT", "cli", "environment"]

_SEGFAULT = "Fatal Python error: Segmentation fault"
_SEGFAULTS_MAX = {"sparse sgd": 2}  # torch's sparse gradients over gloo do, without a log, too: 1 run in 50

Outcome = list[dict[str, Any]]  # by rank

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


_MODULES = (
    "torch.optim.swa_utils",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "tests.distributed.child",
    "tests.distributed.sharded",
    "tests.distributed.rechecked",
    "tests.distributed.scripts",
)


class Launcher(launchers.Launcher):
    """Trains loops in groups of processes under torchrun's agent."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, *_MODULES, TOLD=str(folder / "told"))
        self._references: dict[tuple[int, str], Outcome] = {}

    def run(self, world: int, name: str, run: Path | None, kills: list[Any] | None = None) -> Outcome:
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
        """Run {"world", "restarts", "arguments"} of child.py; says what went wrong. What was told stays if it goes on."""
        if not goes_on:
            (self.folder / "told").unlink(missing_ok=True)
        about = {"is_alone": False, "function": "tests.distributed.child.start", "arguments": {"arguments": job["arguments"]}}
        return super().ask(job | about, goes_on=goes_on)

    def told(self) -> list[dict[str, Any]]:
        """What rank 0 told of each recovery of the last job, in a file: what many processes print may be mixed up."""
        path = self.folder / "told"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def reference(self, world: int, name: str) -> Outcome:
        """What comes out of a loop without a log and without kills."""
        if (world, name) not in self._references:
            self._references[world, name] = self.run(world, name, None)
        return self._references[world, name]


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
