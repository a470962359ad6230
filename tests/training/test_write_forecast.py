"""What the start of a run says about its log and its checkpoints, and that the run keeps to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tranlogs.base.config import MIB
from tranlogs.retention import Automatic, EveryBytes, EverySeconds, EverySteps, KeepAll, KeepLatest, RecoveryTime
from tranlogs.training import ExpectedWrites, forecast_writes


class Mine:
    def is_due(self, facts: Any) -> bool:
        return False


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Automatic(), "next checkpoint after about 47 steps (47.1 MiB of log)"),
        (EveryBytes(10 * MIB), "next checkpoint after about 9 steps (9.0 MiB of log)"),
        (EveryBytes(1), "next checkpoint after about 1 step (1.0 MiB of log)"),
        (EverySteps(1500), "next checkpoint after 1,500 steps (1.5 GiB of log)"),
        (EverySeconds(600), "next checkpoint after 10.0 min"),
        (RecoveryTime(30), "next checkpoint when a recovery would take 30 s"),
        (Mine(), "next checkpoint when Mine says so"),
    ],
)
def test_a_run_says_what_it_writes_and_when_its_next_checkpoint_comes(policy: Any, says: str, tmp_path: Path) -> None:
    assert forecast_writes(policy, tmp_path, ExpectedWrites(MIB, 3 * MIB)) == f"about 1.0 MiB of log a step; {says}"


def test_a_run_that_takes_checkpoints_at_epoch_ends_says_so(tmp_path: Path) -> None:
    said = forecast_writes(Automatic(), tmp_path, ExpectedWrites(MIB, 3 * MIB, at_epoch_ends=True))
    assert said.endswith("; next checkpoint at the end of the epoch, or after about 47 steps (47.1 MiB of log)")


@pytest.mark.parametrize(
    ("retention", "says"),
    [
        (KeepLatest(2), "; at most about 122.2 MiB on disk without crashes"),
        (KeepLatest(1), "; at most about 72.1 MiB on disk without crashes"),
        (KeepAll(), " of log)"),
    ],
)
def test_a_run_says_how_much_disk_space_it_takes_where_that_is_bounded(retention: Any, says: str, tmp_path: Path) -> None:
    said = forecast_writes(Automatic(), tmp_path, ExpectedWrites(MIB, 3 * MIB, 3 * MIB), retention)
    assert said.endswith(says), said
