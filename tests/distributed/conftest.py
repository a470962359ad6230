"""Groups of processes under torchrun's agent: their scripts' twins, and runs that are read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import cli
from tests.distributed import scripts
from tests.kills.job import Death, Script, Start
from tests.kills.judge import Life, finish, killed
from tests.kills.launchers import Torchrun
from tests.support.launcher import Launcher

__all__ = ["cli"]

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

_MODULES = (
    "torch.optim.swa_utils",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.checkpoint.state_dict",
    "tests.distributed.scripts",
)


_CHANGES_NOTHING = (
    "settles",
    "stores",
    "far",
    "hurried",
    "ahead",
    "tight",
    "records",
    "trials",
    "cheap",
    "costly",
)  # of what a script without a log comes to


class Group(Torchrun):
    """Processes that train together, again and again."""

    def dies(self, script: Script, folder: Path, *deaths: Death, **options: Any) -> None:
        """Let the group live until it dies, once for each death."""
        for death in deaths:
            status = killed(script, folder, death, launcher=self, **options)
            assert status < 0, f"a life was to end at {death}; its exit status is {status}\n{self.said()}"

    def ends(self, script: Script, folder: Path, **options: Any) -> list[Life]:
        """Let the group train to the end of the run in a folder."""
        return finish(script, folder, folder / "run", launcher=self, **options)

    def refuses(self, script: Script, folder: Path, **options: Any) -> str:
        """Start the group, which must end with an error; return what it printed."""
        assert self.run(Start(self.job, script, folder, folder / "run", None, options, {})) == 1
        return self.all_said()

    def calls(self, function: str, **arguments: Any) -> str:
        """Let each process call a function, which must return; return what they printed."""
        job = {"world": self.world, "restarts": 0, "is_alone": False, "function": function, "arguments": arguments}
        failure = self._launcher.ask(job)
        assert not failure, f"{failure}\n{self.said()}"
        return self.all_said()

    def all_said(self) -> str:
        """Return all that the last life printed."""
        return self._launcher.said()


Groups = Callable[[int], Group]
Twins = Callable[..., list[Life]]


@pytest.fixture(scope="session")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    """Groups of any number of processes, all started by one warm process that has torchrun's agent."""
    launcher = Launcher(tmp_path_factory.mktemp("launcher"), *_MODULES)
    try:
        yield partial(Group, launcher)
    finally:
        launcher.close()


@pytest.fixture(scope="session")
def twins(groups: Groups, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """What each rank of a script comes to without a log and without kills. Each script lives once."""
    found: dict[str, list[Life]] = {}

    def twin(world: int, **arguments: Any) -> list[Life]:
        odd = " ".join(word for word in arguments.pop("odd", "").split() if word not in _CHANGES_NOTHING)
        arguments = {"kind": "ddp", "odd": odd} | arguments
        name = repr((world, sorted(arguments.items())))
        if name not in found:
            script = partial(scripts.train, **arguments)
            found[name] = finish(script, tmp_path_factory.mktemp("twin") / "life", launcher=groups(world))
        return found[name]

    return twin


def demand_equal(lives: list[Life], right: list[Life]) -> None:
    """Demand that what ranks came to, what they printed and what they wrote is that of their twins."""
    assert [life.differences(twin) for life, twin in zip(lives, right, strict=True)] == [[]] * len(right)


@pytest.fixture(scope="session")
def trained(groups: Groups, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of three ranks under DDP or FSDP2 that went to its end, by kind; to be read only."""
    found: dict[str, Path] = {}

    def train(kind: str) -> Path:
        if kind not in found:
            found[kind] = tmp_path_factory.mktemp(kind)
            groups(3).ends(partial(scripts.train, kind=kind, odd="settles"), found[kind], checkpoint_every=scripts.EVERY)
        return found[kind]

    return train


@pytest.fixture
def copied(trained: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of it, to be damaged."""
    return lambda kind: Path(shutil.copytree(trained(kind), tmp_path / f"copied {kind}"))
