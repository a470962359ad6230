"""A server of processes that has all trainers imported, what was trained there, and how two trainings differ."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import launcher
from tests.support.launcher import ROOT

__all__ = ["ROOT"]

Outcome = list[dict[str, Any]]  # by rank

FINISHED = "the run is finished, and nothing is trained (for another training, give another folder)"


_PACKAGES = {"huggingface": "transformers", "accelerate": "accelerate", "lightning": "lightning"}
# The scripts import TranLogs late, as some of their lives are without it; that would take each other one a second.
_MODULES = (
    "transformers.models.gpt2.modeling_gpt2",
    "torchdata.stateful_dataloader",
    *(f"tranlogs_torch.trainers.{framework}" for framework in _PACKAGES),
    *(f"tests.trainers.{framework}_child" for framework in _PACKAGES),
    "tests.trainers.common",
)


class Launcher:
    """Trains with a trainer again and again, in one process or several.

    Args:
        framework: the trainer.
        processes: starts them.
    """

    def __init__(self, framework: str, processes: launcher.Launcher) -> None:
        self.framework, self._processes = framework, processes
        self._references: dict[str, Outcome] = {}

    def said(self) -> str:
        """Return what the processes of the last job printed."""
        return self._processes.said()

    def run(self, function: str, *, world: int = 1, kills: list[Any] | None = None, **arguments: Any) -> Outcome:
        """Call a function in `world` processes; what each rank came to.

        Args:
            function: its name, in the framework's child module if that is not said.
            world: how many processes.
            kills: for each start, who dies when; given to the function where there are some.
            arguments: of the function.
        """
        out = self._processes.folder / "out"
        for rank in range(world):
            Path(f"{out}.{rank}").unlink(missing_ok=True)
        if kills is not None:
            arguments["kills"] = kills
        if "." not in function:
            function = f"tests.trainers.{self.framework}_child.{function}"
        job = {"world": world, "restarts": len(kills or []), "is_alone": world == 1, "function": "tests.trainers.common.note"}
        failure = self._processes.ask(job | {"arguments": {"function": function, "arguments": arguments, "out": str(out)}})
        assert not failure, f"{failure}\n{self.said()[-6000:]}"
        return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(world)]

    def prove_exact(
        self, run: Path, kills: list[Any], *, world: int = 1, exact: bool | None = True, **arguments: Any
    ) -> Outcome:
        """Train, die, go on; the outcome is that of a training without a log that nobody killed."""
        name = json.dumps([world, arguments], sort_keys=True)
        if name not in self._references:
            self._references[name] = self.run("train", world=world, run=None, folder=str(run.parent / "whole"), **arguments)
        right = self._references[name]
        found = self.run("train", world=world, run=str(run), folder=str(run.parent / "killed"), kills=kills, **arguments)
        for mine, theirs in zip(found, right, strict=True):
            report = mine.pop("report")
            assert report["step"] > 0, "nothing was recovered"
            assert report["exact"] is exact, report
            assert report["recheck"] == "equal", report
            assert {key: (value, theirs[key]) for key, value in mine.items() if value != theirs[key]} == {}
            mine["report"] = report
        return found


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[launcher.Launcher]:
    """Starts the processes of all trainers: one server, since the import of torch and of a trainer takes it ten seconds."""
    variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TRANLOGS_RECHECK": "1"}
    made = launcher.Launcher(tmp_path_factory.mktemp("trainers"), *_MODULES, **variables)
    try:
        yield made
    finally:
        made.close()


def _launcher(framework: str, request: pytest.FixtureRequest) -> Launcher:
    package = _PACKAGES[framework]
    if importlib.util.find_spec(package) is None:
        why = f"{package} is not installed"
        if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
            pytest.fail(f"TRANLOGS_REQUIRE_ALL=1, and {why}")
        pytest.skip(why)
    return Launcher(framework, request.getfixturevalue("processes"))


@pytest.fixture(scope="session")
def huggingface(request: pytest.FixtureRequest) -> Launcher:
    return _launcher("huggingface", request)


@pytest.fixture(scope="session")
def accelerate(request: pytest.FixtureRequest) -> Launcher:
    return _launcher("accelerate", request)


@pytest.fixture(scope="session")
def lightning(request: pytest.FixtureRequest) -> Launcher:
    return _launcher("lightning", request)
