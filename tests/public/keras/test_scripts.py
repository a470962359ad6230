"""Scripts and examples as users write them, killed and taken up again, leave what they would have left without a kill."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.keras.conftest import missing
from tests.keras.lab import Lab
from tests.keras.proof import Place, prove_exact
from tests.support import campaign
from tests.support.examples import UNPROVEN, printed, shortened

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("backend", "script", "places"),
    [
        ("torch", "custom_layers", [["boundary.after", 8], ["validation", 1]]),
        ("torch", "many_callbacks", [["boundary.before", 7], ["recovery.restored", 1], ["after", 1]]),
        ("torch", "event_files", [["boundary.after", 7], ["after", 1]]),
        campaign.in_soak("jax", "custom_layers", [["boundary.after", 8], ["before", 1]]),
    ],
    indirect=["backend"],
)
def test_a_killed_script_ends_as_the_one_that_nobody_killed(
    backend: Lab, script: str, places: list[Place], tmp_path: Path
) -> None:
    if script == "event_files" and not (Path(sys.prefix) / "tensorboard").is_dir():
        missing(f"tensorboard is not in {sys.prefix}: make test fetches it")
    last = prove_exact(backend, f"tests.public.keras.scripts.{script}:train", tmp_path, places)
    assert any(line.startswith("Epoch ") for line in last.printed), "the script prints its epochs"


_LIVE = "tests.public.keras.examples.live"


@pytest.mark.parametrize(
    ("backend", "name", "constants", "lines"),
    [("torch", "keras_callbacks", {"EPOCHS": 4}, 2), campaign.in_soak("tensorflow", "keras_tape", {"EPOCHS": 2}, 3)],
    indirect=["backend"],
)
def test_a_killed_example_ends_with_the_bits_and_the_lines_of_its_twin(
    backend: Lab, name: str, constants: dict[str, int], lines: int, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"file": str(shortened(name, tmp_path, **constants))}
    twin = backend.value(_LIVE, **arguments, folder=str(tmp_path / "twin"), lines=None, calls=0)
    draw, killed = random.Random(f"{name} {campaign.seed()}"), tmp_path / "killed"
    calls = int(30_000 ** draw.random())
    ended = backend.run(_LIVE, **arguments, folder=str(killed), lines=lines, calls=calls)
    assert ended.was_killed, f"seed {campaign.seed()}: {ended.output}"
    last = backend.value(_LIVE, **arguments, folder=str(killed), lines=None, calls=0)
    assert last["state"] == twin["state"], f"seed {campaign.seed()}"
    assert last["others"] == twin["others"]
    assert printed(killed) == printed(tmp_path / "twin"), f"seed {campaign.seed()}"
    assert (last["exact"], last["notes"]) in ((True, []), (None, [UNPROVEN]))
    assert last["lines"] < twin["lines"], "it began anew"
    for table in (tmp_path / "twin").glob("runs/*.csv"):
        assert (killed / "runs" / table.name).read_text() == table.read_text()
