"""The examples of the trainers do what they say: run, killed, run again, they go on to their end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.trainers.conftest import ROOT, Launcher

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("framework", "script", "sign", "end"),
    [
        ("huggingface", "huggingface_trainer", "'loss':", r"done: 180 steps, evaluations .*, .*, .*, however often"),
        ("lightning", "lightning_trainer", "epoch 1:", r"done: 705 steps, however often"),
        ("accelerate", "accelerate_loop", "epoch 1:", r"done: 684 losses, however often"),
    ],
    ids=["huggingface", "lightning", "accelerate"],
)
def test_example_goes_on_after_sigkill(
    framework: str, script: str, sign: str, end: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    launcher: Launcher = request.getfixturevalue(framework)
    told = launcher.run(
        "tests.trainers.common.example", kills=[sign], path=str(ROOT / "examples" / f"{script}.py"), folder=str(tmp_path)
    )[0]
    found = re.search(r"recovered to step (\d+) \(.* being proven\)", str(told))
    assert found is not None, told
    assert int(found[1]) > 0
    assert re.match(end, str(told[-1])), told
