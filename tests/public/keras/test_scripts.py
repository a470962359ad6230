"""Scripts and examples as users write them, killed and taken up again, leave what they would have left without a kill."""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.keras.conftest import missing
from tests.keras.lab import Lab
from tests.keras.proof import Place, prove_exact, run_whole
from tests.kills.job import Death
from tests.kills.judge import killed
from tests.kills.launchers import Server
from tests.support import campaign
from tests.support.examples import shortened
from tranlogs.training import describe_not_computed
from tranlogs.training.recheck_messages import NOTHING_RECORDED

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


@pytest.mark.parametrize(
    ("backend", "name", "constants", "lines"),
    [("torch", "keras_callbacks", {"EPOCHS": 4}, 2), campaign.in_soak("tensorflow", "keras_tape", {"EPOCHS": 2}, 3)],
    indirect=["backend"],
)
def test_a_killed_example_ends_with_the_bits_and_the_lines_of_its_twin(
    backend: Lab, name: str, constants: dict[str, int], lines: int, tmp_path: Path
) -> None:
    script, file, folder = (
        "tests.public.keras.scripts.of_docs:example",
        shortened(name, tmp_path, **constants),
        tmp_path / "killed",
    )
    about: dict[str, Any] = {"is_logged": False, "file": str(file)}  # it logs by itself
    twin = run_whole(backend, script, tmp_path / "twin", **about)
    draw, launcher = random.Random(f"{name} {campaign.seed()}"), Server(backend)
    death = Death("epoch ", number=lines, calls=int(30_000 ** draw.random()))
    status = killed(script, folder, death, launcher=launcher, arguments={"file": str(file)})
    assert status == -signal.SIGKILL, f"{death}: {launcher.said()}"
    before = len((folder / "printed").read_text().splitlines())
    last = run_whole(backend, script, folder, **about)
    for what in ("model", "optimizer", "state"):
        assert last.of(what) == twin.of(what), death
    told, again, wanted = (
        [line for line in printed if line.startswith(("epoch ", "done:"))]
        for printed in (last.printed, last.printed[before:], twin.printed)
    )
    assert set(told) == set(wanted), death
    unproven = describe_not_computed(NOTHING_RECORDED)  # the kill came right behind a checkpoint
    assert (last.exact, last.notes) in ((True, []), (None, [unproven]))
    assert len(again) < len(wanted), "it began anew"
    tables = [path for path in twin.files if path.endswith(".csv")]
    assert [last.files[path] for path in tables] == [twin.files[path] for path in tables]
