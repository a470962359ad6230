"""A server of processes for each trainer, what was trained there, and how two trainings differ."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_SECONDS_MAX = 500.0

Outcome = list[dict[str, Any]]  # by rank


def environment() -> dict[str, str]:
    """For processes that import from this checkout, and reach for nothing outside."""
    paths = [str(ROOT), str(ROOT / "integrations"), str(ROOT / "monitor")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }


class Launcher:
    """A process that starts others (launcher.py). All of them are one process group."""

    def __init__(self, framework: str, folder: Path) -> None:
        self.framework, self.folder = framework, folder
        self._errors = open(folder / "errors", "w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainers.launcher", framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=environment(),
            start_new_session=True,
        )
        self._references: dict[str, Outcome] = {}

    def run(self, function: str, *, world: int = 1, kills: list[Any] | None = None, **arguments: Any) -> Outcome:
        """Call a function in `world` processes; what each rank came to.

        Args:
            function: its name, in the framework's child module if that is not said.
            world: how many processes.
            kills: for each start, who dies when; given to the function where there are some.
            arguments: of the function.
        """
        out = self.folder / "out"
        for rank in range(world):
            Path(f"{out}.{rank}").unlink(missing_ok=True)
        if kills is not None:
            arguments["kills"] = kills
        self._errors.truncate(0)
        self._errors.seek(0)
        if "." not in function:
            function = f"tests.trainers.{self.framework}_child.{function}"
        job = {"world": world, "restarts": len(kills or []), "arguments": arguments, "out": str(out), "function": function}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], _SECONDS_MAX)
        assert ready, f"the job did not end within {_SECONDS_MAX} s\n{self.said()[-6000:]}"
        line = self._process.stdout.readline()
        assert line, f"the launcher ended with {self._process.wait()}\n{self.said()[-6000:]}"
        failure = json.loads(line)["failure"]
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
            assert {key: (value, theirs[key]) for key, value in mine.items() if value != theirs[key]} == {}
            mine["report"] = report
        return found

    def said(self) -> str:
        """What the processes of the last job printed."""
        return (self.folder / "errors").read_text(errors="replace").replace("\0", "")

    def close(self) -> None:
        """End all of them."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.communicate()
        self._errors.close()


def _launcher(framework: str, package: str, folder: Path) -> Iterator[Launcher]:
    if importlib.util.find_spec(package) is None:
        why = f"{package} is not installed"
        if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
            pytest.fail(f"TRANLOGS_REQUIRE_ALL=1, and {why}")
        pytest.skip(why)
    found = Launcher(framework, folder)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="session")
def huggingface(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    yield from _launcher("huggingface", "transformers", tmp_path_factory.mktemp("huggingface"))


@pytest.fixture(scope="session")
def accelerate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    yield from _launcher("accelerate", "accelerate", tmp_path_factory.mktemp("accelerate"))


@pytest.fixture(scope="session")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    yield from _launcher("lightning", "lightning", tmp_path_factory.mktemp("lightning"))
