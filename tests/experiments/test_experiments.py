"""Experiments, the benchmark and the GPU kit run in their short form, and the report tells what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support import campaign

_EXPERIMENTS = Path(__file__).parents[2] / "experiments"
_PARTS = ("disk", "replay", "steps", "trainers", "keras", "recovery", "checkpoint")[: None if campaign.is_soak() else 1]
_NAMES = ("step_time", "recovered_quality", "policies") if campaign.is_soak() else ("recovered_quality", "policies")


def run(into: Path, *words: str) -> None:
    """Run `experiments/run.py WORDS --quick`."""
    command = [sys.executable, str(_EXPERIMENTS / "run.py"), *words, "--quick", "--into", str(into)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def read(folder: Path, name: str) -> dict[str, Any]:
    """Return what an experiment has found."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(_EXPERIMENTS))
    return import_module("paired_timing")


def test_arms_take_turns_until_the_time_is_up(timing: Any) -> None:
    order: list[str] = []

    def block(name: str) -> list[float]:
        order.append(name)
        return [1.0]

    times = timing.take_turns({name: lambda name=name: block(name) for name in "ab"}, 2, seconds_max=60.0)
    assert order == ["a", "b", "a", "b"]
    assert times == {"a": [[1.0], [1.0]], "b": [[1.0], [1.0]]}
    assert len(timing.take_turns({"a": lambda: [1.0]}, 9, seconds_max=-1.0, rounds_min=2)["a"]) == 2


def test_load_on_a_round_changes_no_median_and_a_slow_step_shows_in_mean_and_p99(timing: Any) -> None:
    times = {"plain": [[1.0, 1.0], [5.0, 5.0], [1.0, 1.0]], "logged": [[1.1, 1.1], [5.5, 5.5], [1.1, 1.1]]}
    compared = timing.compare(times, "logged")
    assert compared["median"] == pytest.approx((1.1, 1.1, 1.1))
    assert compared["mean"] == pytest.approx((1.1, 1.1, 1.1))
    assert compared["added_ms"][0] == pytest.approx(100)
    assert (compared["rounds"], compared["steps"]) == (3, 6)
    compared = timing.compare({"plain": [[1.0] * 50] * 4, "logged": [[1.0] * 50] * 3 + [[1.0] * 46 + [9.0] * 4]}, "logged")
    assert compared["median"] == (1.0, 1.0, 1.0)
    assert compared["mean"][0] == pytest.approx(1.16)
    assert compared["p99"][0] == pytest.approx(9.0)


@pytest.mark.slow
@pytest.mark.crash
def test_the_benchmark_has_figures_and_the_page_its_models_and_runs(timing: Any, tmp_path: Path) -> None:
    run(tmp_path, "bench", "--parts", *_PARTS)
    found, page = read(tmp_path, "bench"), (tmp_path / "results.md").read_text()
    assert set(found) == {*_PARTS, "circumstances"}
    for part in {"steps", "trainers", "keras"} & set(_PARTS):
        assert found[part]["cases"], part
        for case in found[part]["cases"]:
            arms = case["steady"] if part == "steps" else case["arms"]
            assert set(arms) - {timing.AUTO} == {timing.PLAIN, timing.MACHINE, timing.FLOOR}
            for _, low, high in (arms[timing.MACHINE][key] for key in ("median", "mean", "p99", "added_ms")):
                assert low <= high, case
    for one in found["disk"]["young"]:
        assert one["young"] > one["payload"] > 0
        assert f"\n{one['case']}, {one['steps']:,} steps | {one['payload'] / (1 << 20):.2f} |" in page
    for one in found["replay"]["replays"] if "replay" in _PARTS else ():
        assert f"\n{one['case']}, {one['form']} AdamW | {one['redone_ms']:.1f} |" in page
    if "recovery" in found:
        assert [one["replayed"] for one in found["recovery"]["recoveries"]] == [found["recovery"]["steps"]]
        assert {case["threads"] for case in found["steps"]["cases"]} == {1, 2}
        run(tmp_path, "bench", "--parts", "replay")  # taken anew, it stands beside the others
        after = read(tmp_path, "bench")
        assert after["disk"] == found["disk"]
        assert after["replay"]["circumstances"]["at"] >= found["circumstances"]["at"]


@pytest.mark.soak
@pytest.mark.crash
def test_recovered_quality_is_that_of_the_uninterrupted_run_and_reported(tmp_path: Path) -> None:
    run(tmp_path, *_NAMES)
    found, page = read(tmp_path, "recovered_quality"), (tmp_path / "results.md").read_text()
    points = found["models"]["MLP"]["points"]
    assert len(points) == 2
    for point in points:
        ours = {key: value for key, value in point["tranlogs"].items() if key != "replayed"}
        assert ours == point["uninterrupted"]
        assert ours["step"] == point["step"] > point["checkpoint"]["step"] == found["interval"]
    for name in _NAMES:
        about = read(tmp_path, name)["circumstances"]
        assert about["machine"]["cpus"] > 0
        assert f"`experiments/{name}.py`, {about['at'][:10]}, `{about['commit']}`" in page
        if name != "step_time":
            assert (tmp_path / "results" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    if "step_time" in _NAMES:
        model = read(tmp_path, "step_time")["models"]["MLP"]
        nbytes = {log: one["bytes_per_step"] / model["parameters"] for log, one in model["logs"].items()}
        assert 0 < nbytes["gradients"] < 5
        assert 12 * 0.8 < nbytes["weights"] < 13  # the state before the first step is zeros


@pytest.mark.soak
def test_the_gpu_kit_measures_on_a_cpu_and_writes_its_json(tmp_path: Path) -> None:
    out, parts = tmp_path / "gpu.json", ["machine", "checkpoint", "tests"]
    command = [sys.executable, str(_EXPERIMENTS / "gpu.py"), "--out", str(out)]
    tried = [*command, "--cpu", "--quick", "--folder", str(tmp_path), "--parts", *parts]
    done = subprocess.run(tried, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found) == parts
    assert found["machine"]["disk_mb_per_s"] > 0
    assert len(found["checkpoint"]["stall_ms"]) == 4
    assert "left out" in found["tests"]
    assert list(tmp_path.iterdir()) == [out], "its folders are deleted"
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert (done.returncode, "no CUDA GPU was found" in done.stderr) == (2, True)


@pytest.mark.soak
@pytest.mark.crash
def test_the_comparison_with_other_systems_tells_costs_crashes_and_faults(tmp_path: Path) -> None:
    """Its short form: torch.save alone, real kills, and what is told of them."""
    run(tmp_path, "peers")
    page, found = (tmp_path / "results.md").read_text(), read(tmp_path, "peers")["peers"]["torch-save"]
    assert page.count("\ntorch.save, rename |") == 1
    assert "| wrong, 2 lost |" in page
    [flip] = found["faults"]["flip"]
    assert [flip[key] for key in ("finished", "resumed", "lost", "verdict")] == [14, 12, 2, "wrong"]
    assert (found["crash"]["1"]["verdict"], found["crash"]["1"]["lost"]) == ("exact", 0)
    assert found["kills"]["1"]["verdicts"] == {"exact": 1}
