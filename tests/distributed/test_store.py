"""A store beside a group of processes: what a lost disk had is brought from it, for whoever goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.distributed.conftest import Launcher
from tests.distributed.test_world import landed, seen

pytestmark = pytest.mark.crash


def test_a_lost_disk_comes_back_from_the_store(launcher: Launcher, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ["resized store", str(run), str(launcher.folder / "out"), json.dumps([[2, 12, 0, "disk"]])]
    assert launcher.ask({"world": 3, "restarts": 0, "arguments": arguments})
    assert "(exitcode: -9)" in launcher.said(), launcher.said()[-3000:]
    launcher.run(3, "resized store", run)
    told = launcher.told()
    assert "rank2: was not here, and was brought from" in launcher.said()
    assert told[0]["step"] >= 11  # the newest checkpoint is that of step 7
    assert told[0]["exact"] is True
    steps = seen(run, 3)
    assert landed(run, 3) == [[told[0]["step"], steps[told[0]["step"]][0][2]]] * 3
    newest = max(steps)
    shutil.rmtree(run)  # and another machine goes on
    launcher.run(2, "resized store", run)
    assert [path.name for path in sorted(run.iterdir())] == ["rank0", "rank1", "rank2"]
    assert landed(run, 2) == [[newest, steps[newest][0][2]]] * 2
