"""Runs of sharded parameters that go on with another number of processes, or another mesh.

Each lands bit for bit on what a replay makes of the folder as it was before, and whoever dies on the way takes no step along.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import Cli
from tests.distributed.child import DIES, SAMPLES, _digest
from tests.distributed.conftest import Launcher
from tests.distributed.sharded import EPOCHS
from tests.distributed.test_kills import differences
from tranlogs.errors import RecoveryError
from tranlogs_torch.offline import OfflineRun

pytestmark = pytest.mark.crash

TORN = "step-*-t{:03}-*"  # the checkpoint with which rank 0 begins: the one who waits for it dies before its own


def replayed(run: Path) -> tuple[int, dict[str, str]] | None:
    """Where a run would land, and digests of whole parameters and whole optimizer state there; None if it holds nothing."""
    offline = OfflineRun(run / "rank0")
    if not (run / "rank0").exists():
        return None
    report = offline.replay()
    assert report.exact is True, report
    found = {}
    for name, p in offline.state.parameters.items():
        kept = offline.state.optimizers["main"].state[p]
        for key, value in {"": p.detach(), **{key: one for key, one in kept.items() if torch.is_tensor(one)}}.items():
            found[f"{name} {key}"] = _digest(value.numpy().tobytes())
    return report.step, found


class Chain:
    """A run that goes from one number of processes to the next, and is compared at each change.

    Attributes:
        told: what rank 0 said of each recovery.
        steps: epoch, samples and a digest of what is a rank's own, of all ranks, by step; those of the last who took it.
    """

    def __init__(self, launcher: Launcher, run: Path, name: str) -> None:
        self.launcher, self.run, self._name = launcher, run, name
        self.told: list[dict[str, Any]] = []
        self.steps: dict[int, list[Any]] = {}

    def go_on(self, world: int, kills: list[list[Any]]) -> None:
        """Start so many processes, and again after each of the kills but the last."""
        before = replayed(self.run)
        arguments = [self._name, str(self.run), str(self.launcher.folder / "out"), json.dumps(kills)]
        assert self.launcher.ask({"world": world, "restarts": len(kills) - 1, "arguments": arguments})
        assert DIES in self.launcher.said(), self.launcher.said()[-3000:]
        self.told += self.launcher.told()
        for rank in range(world):
            self._compare(rank, before)
        for rank in range(world):
            self._collect(Path(f"{self.run}.seen{rank}"))

    def _compare(self, rank: int, before: tuple[int, dict[str, str]] | None) -> None:
        """Whether a rank began with what was there."""
        path = Path(f"{self.run}.landed{rank}")
        if before is not None and path.exists():
            step, found, _, own = json.loads(path.read_text())
            assert (step, found) == before
            if rank < len(self.steps[step]):
                assert own == self.steps[step][rank][2], f"what was rank {rank}'s own at step {step}"
        path.unlink(missing_ok=True)

    def _collect(self, path: Path) -> None:
        taken = list(map(json.loads, path.read_text().splitlines())) if path.exists() else []
        for step, epoch, samples, own in taken:
            if path.name.endswith("seen0"):
                self.steps[step] = []
            self.steps[step].append((epoch, samples, own))
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def chain(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Two processes, then four of which one dies in the change, again two, and four and three that die while they train."""
    found = Chain(launcher, tmp_path_factory.mktemp("resharded") / "run", "resharded")
    found.go_on(2, [[1, 9, 0]])
    import time

    t = time.time()
    found.go_on(4, [[3, None, 0, TORN.format(2)]])
    print(found.launcher.said()[-1500:], time.time() - t)
    t = time.time()
    found.go_on(2, [[0, 12, 0]])
    print(found.told, time.time() - t)
    t = time.time()
    found.go_on(4, [[2, None, 0, TORN.format(4)], [2, 23, 0]])
    print(found.told, time.time() - t)
    t = time.time()
    found.go_on(3, [[1, 31, 0]])
    print(found.told, time.time() - t)
    t = time.time()
    return found


def test_chain(chain: Chain) -> None:
    print(chain.told)
