"""The examples of the trainers, killed and started again, end with the bits and the lines of one that was not killed."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.support import campaign
from tests.support.examples import shortened
from tests.trainers.conftest import Launcher

pytestmark = pytest.mark.crash


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("framework", "script", "epochs", "signs", "end"),
    [
        (
            "huggingface",
            "huggingface_trainer",
            2,
            ["'loss':", "eval_loss"],
            "done: 120 steps, evaluations .*, .*, however often",
        ),
        ("lightning", "lightning_trainer", 4, ["epoch 1:", "epoch 2:"], "done: 188 steps, however often"),
        ("accelerate", "accelerate_loop", 4, ["epoch 0:", "epoch 1:"], "done: 228 losses, however often"),
    ],
    ids=["huggingface", "lightning", "accelerate"],
)
def test_a_killed_example_ends_with_the_bits_and_the_lines_of_its_twin(
    framework: str, script: str, epochs: int, signs: list[str], end: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    launcher: Launcher = request.getfixturevalue(framework)
    file = shortened(script, tmp_path, EPOCHS=epochs)
    draw = random.Random(f"{script} {campaign.seed()}")
    kills = [(sign, int(3_000 ** draw.random())) for sign in signs]
    function, path = "tests.trainers.common.example", str(file)
    twin = launcher.run(function, kills=[], path=path, folder=str(tmp_path / "twin"))[0]
    last = launcher.run(function, kills=kills, path=path, folder=str(tmp_path / "killed"))[0]
    recovered = re.search(r"recovered to step (\d+) \(.* (bit-exact|being proven)\)", str(last["lines"]))
    assert recovered is not None, last["lines"]
    assert int(recovered[1]) > 0
    assert any("are equal to those before the crash, bit for bit" in line for line in last["lines"]), last["lines"]
    assert last["model"] == twin["model"], kills
    told = [line for line in last["lines"] if not any(words in line for words in ("recovered to", "computed again", "runtime"))]
    assert set(told) <= set(twin["lines"]), kills
    assert re.match(end, told[-1]), told
    assert len(told) < len(twin["lines"]) - 1, "it began anew"
