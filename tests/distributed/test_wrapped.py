"""Ranks that hold ranges of FullyShardedDataParallel, or what ZeroRedundancyOptimizer gave them, and die by SIGKILL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import Cli
from tests.distributed.child import DIES
from tests.distributed.conftest import Launcher
from tests.distributed.sharded import STEPS
from tests.distributed.test_kills import differences, drawn

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("world", "name", "kills"),
    [
        (3, "classic", 3), (2, "classic mixed accumulation", 2), (4, "classic replicated", 1), (3, "zero", 3),
        (2, "zero views", 2),
    ],
)  # fmt: skip
def test_killed_group_ends_with_the_bits_of_one_that_was_not(
    launcher: Launcher, cli: Cli, tmp_path: Path, world: int, name: str, kills: int
) -> None:
    planned = drawn(world, kills, last=STEPS // 3 if "accumulation" in name else STEPS)
    planned[-1][1] = max(planned[-1][1], 9)  # one of them behind a checkpoint, and amid training
    print(planned)
    right = launcher.reference(world, name)
    found = launcher.run(world, name, tmp_path / "run", planned)
    told = launcher.told()
    print(told)
    assert differences(found, right) == [[]] * world
    assert DIES in launcher.said(), "nobody was killed"
    assert all(report["exact"] is True for report in told)
    again = cli("replay", tmp_path / "run", "--out", tmp_path / "out.pt", "--json")
    assert (again.code, again.json["exact"]) == (0, True), again.err
    content = torch.load(tmp_path / "out.pt", weights_only=True)
    weights = {key: values.tolist() for key, values in content["model"].items() if key in right[0]["weights"]}
    assert weights == right[0]["weights"]
    state: dict[int, dict[str, Any]] = content["optimizers"]["main"]["state"]
    parameters = [number for group in content["optimizers"]["main"]["param_groups"] for number in group["params"]]
    assert sorted(state) == sorted(parameters) == list(range(len(right[0]["weights"])))
