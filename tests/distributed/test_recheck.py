"""Several ranks compute the newest unit before a crash again: all find it equal, or all set back what they have recorded."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.child import DIES
from tests.distributed.conftest import Launcher, Outcome
from tests.distributed.rechecked import BATCHES, STEPS
from tests.distributed.test_kills import differences

pytestmark = pytest.mark.crash

Reports = list[list[dict[str, Any]]]  # of the starts, each with those of all ranks


def reports(run: Path, world: int = 2) -> list[Reports]:
    """By start and rank, what the report said when all had recovered, and each time when the recheck changed it."""
    told = [[json.loads(line) for line in Path(f"{run}.reports{rank}").read_text().splitlines()] for rank in range(world)]
    starts = 1 + max(one["start"] for ranks in told for one in ranks)
    return [[[one for one in ranks if one["start"] == start] for ranks in told] for start in range(starts)]


def verdicts(found: Reports) -> list[list[tuple[str, bool | None]]]:
    return [[(one["recheck"], one["exact"]) for one in ranks] for ranks in found]


PROVEN: list[tuple[str, bool | None]] = [("pending", None), ("equal", True)]
REFUTED: list[tuple[str, bool | None]] = [("pending", None), ("different", False)]


@pytest.mark.parametrize("name", ["ddp rechecked", "fsdp rechecked", "ddp plain"])
def test_ranks_whose_state_is_in_the_run_are_proven_at_every_kill(launcher: Launcher, tmp_path: Path, name: str) -> None:
    """One of the kills comes in the first batch of an epoch: the unit has the end of the epoch in it."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    steps = sorted({BATCHES, *chance.sample(range(2, STEPS), 3)})
    kills = [{"rank": chance.randrange(2), "step": step, "moment": chance.choice(["forward", "step"])} for step in steps]
    print(kills)
    found = launcher.run(2, name, tmp_path / "run", kills)
    assert differences(found, launcher.reference(2, name)) == [[]] * 2
    told = reports(tmp_path / "run")
    print(json.dumps(told, indent=1))
    assert len(told) == len(kills) + 1
    for start, step in zip(told[1:], steps, strict=True):
        assert [[one["step"] for one in ranks][0] for ranks in start] == [step - 1] * 2
        assert verdicts(start) == [PROVEN] * 2
        assert [ranks[-1]["rechecked"] for ranks in start] == [1, 1]
