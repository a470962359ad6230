"""The comparison with other systems, in its short form: torch.save alone, real kills, and what is told of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.soak
_EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results and report."""
    into = tmp_path_factory.mktemp("peers")
    subprocess.run([sys.executable, str(_EXPERIMENTS / "run.py"), "peers", "--quick", "--into", str(into)], check=True)
    return into


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What `peers.py --quick` writes."""
    results: dict[str, Any] = json.loads((folder / "peers.json").read_text())
    return results


@pytest.mark.crash
def test_the_report_tells_costs_crashes_and_faults(folder: Path) -> None:
    page = (folder / "results.md").read_text()
    assert page.count("| torch.save, rename |") == 2
    assert "| wrong, 2 lost |" in page
    assert (folder / "results" / "peers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.crash
def test_a_killed_run_of_torch_save_goes_on_exactly_from_its_newest_save(found: dict[str, Any]) -> None:
    [fault] = found["peers"]["torch-save"]["faults"]["between"]
    assert fault["finished"] == 14
    assert fault["resumed"] == 12
    assert fault["lost"] == 2
    assert fault["verdict"] == "exact"
    assert fault["orphans"] == 0


@pytest.mark.crash
def test_a_save_that_was_cut_short_is_refused_in_words(found: dict[str, Any]) -> None:
    [fault] = found["peers"]["torch-save"]["faults"]["cut"]
    assert fault["verdict"] == "refused"
    assert "RuntimeError" in fault["error"]


@pytest.mark.crash
def test_a_crash_at_interval_one_loses_at_most_the_running_step(found: dict[str, Any]) -> None:
    crash = found["peers"]["torch-save"]["crash"]["1"]
    assert crash["verdict"] == "exact"
    assert crash["lost"] == 0
    assert crash["seconds"] >= crash["seconds_back"] > 0


@pytest.mark.crash
def test_random_kills_and_a_trainer_faster_than_its_saves_come_back_exactly(found: dict[str, Any]) -> None:
    assert found["peers"]["torch-save"]["kills"]["1"]["verdicts"] == {"exact": 1}
    outrun = found["peers"]["torch-save"]["outrun"]
    assert (outrun["finished"], outrun["verdict"]) == (150, "exact")
    assert outrun["step_seconds"] > found["outrun"]["step_seconds"]


def test_bytes_of_a_save_at_each_step_are_those_of_the_state(found: dict[str, Any]) -> None:
    cost = found["peers"]["torch-save"]["cost"]["1"]
    assert cost["steps"] == 9
    assert cost["mean"] > 0
    assert cost["written_per_step"] == 0 or cost["written_per_step"] > 12 * found["parameters"]  # none: the disk is memory
