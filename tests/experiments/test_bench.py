"""`make bench` in its short form, and how its figures are compared with goals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support import campaign

_EXPERIMENTS = Path(__file__).parents[2] / "experiments"
_CHEAP = ("replay", "disk")
_ALL = (*_CHEAP, "steps", "trainers", "keras", "recovery", "checkpoint")
_PARTS = _ALL if campaign.is_soak() else _CHEAP


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(_EXPERIMENTS))
    return import_module("paired_timing")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(_EXPERIMENTS))
    return import_module("figures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results and report."""
    into = tmp_path_factory.mktemp("bench")
    command = [sys.executable, str(_EXPERIMENTS / "run.py"), "bench", "--quick", "--into", str(into), "--parts", *_PARTS]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return into


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What `bench.py --quick` writes."""
    results: dict[str, Any] = json.loads((folder / "bench.json").read_text())
    return results


def test_arms_take_turns_block_by_block(turns: Any) -> None:
    order: list[str] = []

    def block(name: str) -> list[float]:
        order.append(name)
        return [1.0]

    times = turns.take_turns({name: lambda name=name: block(name) for name in "ab"}, 2, seconds_max=60.0)
    assert order == ["a", "b", "a", "b"]
    assert times == {"a": [[1.0], [1.0]], "b": [[1.0], [1.0]]}


def test_time_that_is_up_ends_the_turns_after_the_fewest_rounds(turns: Any) -> None:
    assert len(turns.take_turns({"a": lambda: [1.0]}, 9, seconds_max=-1.0, rounds_min=2)["a"]) == 2


def test_load_that_falls_on_a_whole_round_does_not_change_a_median(turns: Any) -> None:
    times = {"plain": [[1.0, 1.0], [5.0, 5.0], [1.0, 1.0]], "logged": [[1.1, 1.1], [5.5, 5.5], [1.1, 1.1]]}
    compared = turns.compare(times, "logged")
    assert compared["median"] == pytest.approx((1.1, 1.1, 1.1))
    assert compared["mean"] == pytest.approx((1.1, 1.1, 1.1))
    assert compared["added_ms"][0] == pytest.approx(100)
    assert (compared["rounds"], compared["steps"]) == (3, 6)


def test_a_rare_slow_step_shows_in_mean_and_p99_alone(turns: Any) -> None:
    compared = turns.compare({"plain": [[1.0] * 50] * 4, "logged": [[1.0] * 50] * 3 + [[1.0] * 46 + [9.0] * 4]}, "logged")
    assert compared["median"] == (1.0, 1.0, 1.0)
    assert compared["mean"][0] == pytest.approx(1.16)
    assert compared["p99"][0] == pytest.approx(9.0)


@pytest.mark.parametrize(("value", "goal", "verdict"), [(1.05, 1.05, "met"), (1.051, 1.05, "not met"), (3.0, None, "")])
def test_verdict_compares_what_is_shown_with_the_goal(figures: Any, value: float, goal: float | None, verdict: str) -> None:
    figure = figures.Figure.of("case", "median", (value, 1.0, 4.0), "", goal)
    assert figure.verdict(goal) == verdict
    [row] = figures.goal_rows([figure.as_dict()])
    assert row == ["case", "median", f"{value:.3f} [1.000-4.000]", "" if goal is None else f"{goal:g}", verdict, "", ""]


@pytest.mark.slow
def test_every_part_has_figures_with_their_quartiles(found: dict[str, Any]) -> None:
    assert set(found) == {*_PARTS, "circumstances"}
    for part in _PARTS:
        assert found[part]["figures"], part
        for figure in found[part]["figures"]:
            assert figure["low"] <= figure["high"], figure


@pytest.mark.slow
@pytest.mark.soak
def test_steps_are_timed_with_one_and_two_threads_on_fresh_and_recycled_files(found: dict[str, Any]) -> None:
    cases = {(case["case"], case["threads"]): case for case in found["steps"]["cases"]}
    assert {threads for _, threads in cases} == {1, 2}
    for case in cases.values():
        assert {"plain", "plain again (noise)", "logged, machine", "logged, process"} <= set(case["steady"])
        assert {"plain", "logged, machine", "logged, process"} <= set(case["fresh"])


@pytest.mark.slow
def test_the_page_has_the_runs_and_models_that_were_measured(folder: Path, found: dict[str, Any]) -> None:
    page = (folder / "results.md").read_text()
    for one in found["disk"]["young"]:
        assert f"| {one['case']}, {one['steps']:,} steps | {one['payload'] / (1 << 20):.2f} |" in page
    for one in found["replay"]["replays"]:
        assert f"| {one['case']}, {one['form']} AdamW | {one['redone_ms']:.1f} |" in page


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.crash
def test_recovery_redoes_every_step_of_the_killed_run(found: dict[str, Any]) -> None:
    assert [one["replayed"] for one in found["recovery"]["recoveries"]] == [found["recovery"]["steps"]]


@pytest.mark.slow
def test_disk_of_a_young_run_is_counted_at_several_ages(found: dict[str, Any]) -> None:
    for one in found["disk"]["young"]:
        assert one["young"] > one["payload"] > 0


@pytest.mark.sampled(0)
def test_part_that_is_taken_anew_stands_beside_the_others(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "bench.json", tmp_path)
    command = [sys.executable, str(_EXPERIMENTS / "run.py"), "bench", "--quick", "--into", str(tmp_path), "--parts", "replay"]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    before = json.loads((folder / "bench.json").read_text())
    after = json.loads((tmp_path / "bench.json").read_text())
    assert after["circumstances"] == before["circumstances"]
    assert after["disk"] == before["disk"]
    assert after["replay"]["circumstances"]["at"] >= before["circumstances"]["at"]
    assert "| bench: replay |" in next(tmp_path.glob("*.md")).read_text()
