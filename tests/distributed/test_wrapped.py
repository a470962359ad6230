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
from tests.distributed.test_resharded import TORN, Chain
from tests.support import campaign

pytestmark = pytest.mark.crash


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("world", "name", "kills"),
    [
        (3, "classic", 2),
        campaign.in_soak(2, "classic mixed accumulation", 2),
        (4, "classic replicated", 1),
        (3, "zero", 3),
        campaign.in_soak(2, "classic replicated", 1),
        campaign.in_soak(2, "zero views", 2),
    ],
)
def test_killed_group_ends_with_the_bits_of_one_that_was_not(
    launcher: Launcher, cli: Cli, tmp_path: Path, world: int, name: str, kills: int
) -> None:
    planned = drawn(world, campaign.few(kills), last=STEPS // 3 if "accumulation" in name else STEPS)
    planned[-1][1] = max(planned[-1][1], 9)  # one of them behind a checkpoint, and amid training
    print(planned)
    right = launcher.reference(world, name)
    found = launcher.run(world, name, tmp_path / "run", planned)
    told = launcher.told()
    print(told)
    assert differences(found, right) == [[]] * world
    assert DIES in launcher.said(), "nobody was killed"
    assert all(report["exact"] is True for report in told)
    again = cli("replay", tmp_path / "run", "--out", tmp_path / "out.pt", "--force", "--json")
    assert (again.code, again.json["exact"]) == (0, True), again.err
    content = torch.load(tmp_path / "out.pt", weights_only=True)
    weights = {key: values.tolist() for key, values in content["model"].items() if key in right[0]["weights"]}
    assert weights == right[0]["weights"]
    state: dict[int, dict[str, Any]] = content["optimizers"]["main"]["state"]
    parameters = [number for group in content["optimizers"]["main"]["param_groups"] for number in group["params"]]
    assert sorted(state) == sorted(parameters) == list(range(len(right[0]["weights"])))


@pytest.mark.sampled(0)
def test_other_numbers_take_ranges_and_own_parameters_for_theirs(launcher: Launcher, tmp_path: Path) -> None:
    """One process; two, wrapped; three with ZeRO, one of which dies in the change; four under FSDP2; two and one again."""
    found = Chain(launcher, tmp_path / "run", "resharded wrapped")
    found.go_on(1, [[0, 5, 0]])
    found.go_on(2, [[1, 9, 0]])
    found.go_on(3, [[2, None, 0, TORN.format(3)], [0, 16, 0]])
    found.go_on(4, [[3, 20, 0]])
    found.go_on(3, [[1, 24, 0]])
    found.go_on(2, [[0, 28, 0]])
    found.go_on(1, [[0, 33, 0]], restarts=1)
    assert [report["step"] for report in found.told] == [0, 5, 9, 16, 20, 24, 28, 33]
    assert [report["exact"] for report in found.told] == [True, None, None, None, None, None, None, True]
    assert found.landings == 2 + 3 + 4 + 3 + 2 + 1 + 1


def test_a_join_is_refused_where_each_rank_steps_its_own(launcher: Launcher, tmp_path: Path) -> None:
    job = {"world": 2, "restarts": 0, "arguments": ["zero join", str(tmp_path / "run"), str(tmp_path / "out"), "[]"]}
    assert launcher.ask(job)
    assert "join() with a ZeroRedundancyOptimizer is not logged" in launcher.said()
