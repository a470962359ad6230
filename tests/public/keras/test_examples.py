"""The Keras examples, killed and started again, end with the bits and the lines of one that was not killed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.support import campaign
from tests.support.examples import printed, shortened

_LIVE = "tests.public.keras.examples.live"


@pytest.mark.sampled(1)
@pytest.mark.crash
@pytest.mark.parametrize(
    ("name", "constants", "lines"), [("keras_callbacks", {"EPOCHS": 4}, 2), ("keras_tape", {"EPOCHS": 2}, 3)]
)
def test_a_killed_example_ends_with_the_bits_and_the_lines_of_its_twin(
    name: str, constants: dict[str, int], lines: int, tensorflow: Lab, tmp_path: Path
) -> None:
    file = shortened(name, tmp_path, **constants)
    arguments: dict[str, Any] = {"file": str(file)}
    twin = tensorflow.value(_LIVE, **arguments, folder=str(tmp_path / "twin"), lines=None, calls=0)
    draw, killed = random.Random(f"{name} {campaign.seed()}"), tmp_path / "killed"
    for _ in range(2 if campaign.is_soak() else 1):
        calls = int(30_000 ** draw.random())
        ended = tensorflow.run(_LIVE, **arguments, folder=str(killed), lines=lines, calls=calls)
        assert ended.was_killed, f"seed {campaign.seed()}: {ended.output}"
    last = tensorflow.value(_LIVE, **arguments, folder=str(killed), lines=None, calls=0)
    assert last["state"] == twin["state"], f"seed {campaign.seed()}"
    assert last["others"] == twin["others"]
    assert printed(killed) == printed(tmp_path / "twin"), f"seed {campaign.seed()}"
    assert (last["exact"], last["notes"]) == (True, [])
    assert last["lines"] < twin["lines"], "it began anew"
    for table in (tmp_path / "twin").glob("runs/*.csv"):
        assert (killed / "runs" / table.name).read_text() == table.read_text()
