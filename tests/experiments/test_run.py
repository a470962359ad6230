"""Experiments run as `make experiments` runs them, in their short form, and the report tells what they found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_RUN = Path(__file__).parents[2] / "experiments" / "run.py"
_NAMES = ("step_time", "recovered_quality")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results and report of both."""
    found = tmp_path_factory.mktemp("experiments")
    subprocess.run([sys.executable, str(_RUN), *_NAMES, "--quick", "--into", str(found)], check=True)
    return found


def _read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


@pytest.mark.sampled(0)
@pytest.mark.slow
def test_shares_of_a_step_add_up_and_lie_within_their_intervals(folder: Path) -> None:
    model = _read(folder, "step_time")["models"]["MLP"]
    middle, low, high = model["shares"]
    assert sum(middle) == pytest.approx(1)
    assert all(a <= b <= c for a, b, c in zip(low, middle, high, strict=True))


@pytest.mark.slow
def test_bytes_of_each_kind_of_log_are_those_of_the_model(folder: Path) -> None:
    model = _read(folder, "step_time")["models"]["MLP"]
    nbytes = {log: found["bytes_per_step"] / model["parameters"] for log, found in model["logs"].items()}
    assert 0 < nbytes["gradients"] < 5
    assert 4 <= nbytes["weights without optimizer state"] < 5
    assert 12 * 0.8 < nbytes["weights"] < 13  # the state before the first step is zeros


@pytest.mark.slow
@pytest.mark.crash
def test_recovered_quality_is_that_of_the_uninterrupted_run(folder: Path) -> None:
    found = _read(folder, "recovered_quality")
    points = found["models"]["MLP"]["points"]
    assert len(points) == 2
    for point in points:
        ours = {key: value for key, value in point["tranlogs"].items() if key != "replayed"}
        assert ours == point["uninterrupted"]
        assert ours["step"] == point["step"] > point["checkpoint"]["step"] == found["interval"]


@pytest.mark.slow
def test_report_shows_tables_pictures_and_circumstances(folder: Path) -> None:
    page = (folder / "results.md").read_text()
    assert page.count("| MLP") == 2
    for name in _NAMES:
        about = _read(folder, name)["circumstances"]
        assert about["machine"]["cpus"] > 0
        assert f"| {name} | {about['at'][:10]}" in page
        assert f"](results/{name}.png)" in page
        assert (folder / "results" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("Not taken yet") >= 4
