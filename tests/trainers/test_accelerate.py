"""A loop that accelerate has prepared is killed by SIGKILL: it ends with the bits of one that nobody killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import campaign
from tests.trainers.conftest import Launcher

pytestmark = pytest.mark.crash


def test_kills_leave_no_trace(accelerate: Launcher, tmp_path: Path) -> None:
    chance = campaign.dice()
    kills = [[0, "batch", 3], [0, "batch", 7], [0, "epoch end", 1], [0, "batch", chance.randrange(14, 21)]]
    found = accelerate.prove_exact(tmp_path / "run", kills)
    report = found[0]["report"]
    assert report["batch"] == report["step"] == kills[-1][2] - report["rechecked"]


def test_accumulated_gradients_end_where_the_step_did(accelerate: Launcher, tmp_path: Path) -> None:
    kills = [[0, "batch", 4], [0, "batch", 7], [0, "batch", 13]]
    found = accelerate.prove_exact(tmp_path / "run", kills, accumulation=3, seedable=True)
    assert (
        found[0]["report"]["step"] + found[0]["report"]["rechecked"] == 5
    )  # three steps an epoch: after 3, 6 and all 7 batches
    assert found[0]["report"]["batch"] == 10


@pytest.mark.soak  # as under Lightning and Hugging Face Trainer, which uses accelerate
def test_processes_under_torchrun_leave_no_trace_either(accelerate: Launcher, tmp_path: Path) -> None:
    accelerate.prove_exact(tmp_path / "run", [[2, "batch", 2], [0, "batch", 7]], world=3, accumulation=2)


def test_batches_are_counted_as_they_are_trained(accelerate: Launcher, tmp_path: Path) -> None:
    found = accelerate.run("counted", folder=str(tmp_path))[0]
    assert found["taken"] == [4, 6, 6]
    assert found["batches"] == [0, 4, 10]
    assert "log_prepared" in found["refused"]
