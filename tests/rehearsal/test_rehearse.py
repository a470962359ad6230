"""Real scripts, rehearsed: processes that are killed by SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.kills.launchers import wait_for
from tests.rehearsal.conftest import SCRIPTS, Rehearse, begin, find_processes
from tests.support import campaign

pytestmark = [pytest.mark.crash, pytest.mark.slow]


def test_script_that_tracks_everything_resumes_exactly(rehearse: Rehearse) -> None:
    kills = 2 if campaign.is_soak() else 1
    found = rehearse("loop.py", "--kills", str(kills), "--units", "12", kind="exact")
    assert (found.code, found.verdict["outcome"]) == (0, "exact")
    assert len(found.verdict["kills"]) >= kills
    assert "training" in {kill["during"] for kill in found.verdict["kills"]}
    assert found.verdict["step"] == found.verdict["units"] == 12
    assert "2 written files" in found.verdict["compared"]
    assert found.verdict["differences"] == [] == found.left


@pytest.mark.soak
def test_counter_that_is_not_tracked_is_named_at_the_first_step_it_changes(rehearse: Rehearse) -> None:
    found = rehearse("loop.py", "--kills", "1", "--units", "8", kind="counter")
    assert (found.code, found.verdict["outcome"]) == (1, "not exact")
    died = found.verdict["kills"][0]["step"]
    assert died % 3, "else the counter is right by chance, and the seed is to be changed"
    steps = {difference["kind"]: difference["step"] for difference in found.verdict["differences"]}
    assert died < steps["gradients"] <= died + 3
    assert f"'turn {died + 1}: loss" in found.verdict["differences"][-1]["what"]
    assert steps["printed"] == died + 1
    assert found.verdict["advice"] == [
        "state = optimizer.remember(count=...) before recover(), with the first value for ..., and state.count in the loop",
        "epoch.enumerate(), or optimizer.batches(loader, until=STEPS, enumerate=True), for the true number of a batch",
    ]


@pytest.mark.soak
def test_variables_that_start_over_are_named_with_the_line_that_keeps_them(rehearse: Rehearse) -> None:
    """The units resume exactly, and reach the end of an epoch, where the variables change."""
    found = rehearse("loop.py", "--kills", "1", "--units", "14", kind="starts over")
    assert (found.code, found.verdict["differences"]) == (0, [])
    assert sorted(found.verdict["starts_over"]) == ["best", "curve", "meter (Meter)"]
    said = ("Its first 14 units with 1 kill equal those without, but ", " start over at each start.")
    assert found.verdict["headline"].startswith(said[0])
    assert found.verdict["headline"].endswith(said[1])
    assert "best and curve start over at each start" in found.notes
    assert "meter (Meter) starts over at each start: training changes sum" in found.notes
    assert sorted(found.verdict["advice"]) == [
        "give Meter state_dict() and load_state_dict(state), and optimizer.track(meter=meter) before recover()",
        'state = optimizer.remember(best=float("inf"), curve=[]) before recover(), and state.best in the loop',
    ]


@pytest.mark.soak
def test_units_that_are_too_few_for_the_end_of_an_epoch_are_said(rehearse: Rehearse) -> None:
    """What changes there only is not known."""
    found = rehearse("loop.py", "--kills", "1", "--units", "6", kind="starts over")
    assert (found.code, found.verdict["starts_over"]) == (0, [])
    assert "Give --units 14 (an epoch has 10 batches) for that" in found.notes


def test_script_that_is_not_wrapped_is_told_what_it_loses(rehearse: Rehearse) -> None:
    found = rehearse("not_wrapped.py")
    assert (found.code, found.verdict["is_wrapped"]) == (1, False)
    assert "starts again from the beginning" in found.verdict["headline"]
    assert "model.pt, and does not read it" in found.notes
    assert any("LoggedOptimizer(optimizer, run=" in line for line in found.verdict["advice"])


def test_script_with_a_checkpoint_of_its_own_is_told_what_it_loses(rehearse: Rehearse) -> None:
    found = rehearse("own_checkpoint.py")
    assert found.code == 1
    assert "continues from a checkpoint of its own" in found.verdict["headline"]
    assert "has written last.pt, and reads last.pt when it is started again" in found.notes
    assert f"the script writes outside of its working folder: {found.folder.parent / 'outside.log'}" in found.notes


def test_rehearsal_that_is_ended_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "sleeps.py").write_text(SCRIPTS["sleeps.py"])
    pid = begin(tmp_path, scratch, ["--scratch", str(scratch), "--", sys.executable, "sleeps.py"], tmp_path / "said")
    deadline = time.monotonic() + 60
    while not list(scratch.glob("*/twin/files/started")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(pid, signal.SIGTERM)
    assert wait_for(pid) == 128 + signal.SIGTERM
    assert find_processes(scratch) == []
    assert list(scratch.iterdir()) == []


@pytest.mark.soak
def test_script_that_cannot_be_started_twice_does_not_resume(rehearse: Rehearse) -> None:
    found = rehearse("loop.py", "--kills", "1", "--units", "6", kind="fails again")
    assert found.code == 1
    assert "does not resume" in found.verdict["headline"]
    assert "FileExistsError" in found.notes


def test_script_that_never_steps_and_ignores_signals_is_not_judged(rehearse: Rehearse) -> None:
    found = rehearse("never_steps.py", "--time", "4s")
    assert (found.code, found.verdict["outcome"]) == (2, "not judged")
    assert "took no step within the 4 s" in found.verdict["headline"]
    assert found.verdict["seconds"] < 40
    assert found.left == []


def test_script_that_waits_for_input_is_not_judged(rehearse: Rehearse) -> None:
    found = rehearse("waits.py")
    assert found.code == 2
    assert "waits for input" in found.notes
    assert found.verdict["seconds"] < 40


def test_daemon_is_not_judged_and_does_not_survive(rehearse: Rehearse) -> None:
    found = rehearse("daemon.py")
    assert found.code == 2
    assert "into the background" in found.verdict["headline"]
    assert found.left == []


def test_disk_limit_ends_the_rehearsal(rehearse: Rehearse) -> None:
    found = rehearse("fills_disk.py", "--disk", "1MiB")
    assert found.code == 2
    assert "1.0 MiB on disk (--disk)" in found.verdict["headline"]


@pytest.mark.soak
def test_a_fit_of_keras_resumes_exactly(rehearse: Rehearse) -> None:
    found = rehearse("keras_fit.py", "--kills", "1", "--units", "9")
    assert (found.code, found.verdict["differences"]) == (0, [])
    assert "printed lines" in found.verdict["compared"]


@pytest.mark.soak
def test_two_processes_under_torchrun_resume_exactly(rehearse: Rehearse) -> None:
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    found = rehearse("ddp.py", "--kills", "1", "--units", "10", start=start)
    assert (found.code, found.verdict["differences"]) == (0, [])
    assert found.verdict["ranks"] == 2
    assert found.left == []


def test_wrong_usage_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("open('ran', 'w')")
    for options, message in (
        (["--units", "1", "--", "python", "x.py"], "--units must be at least 2"),
        (["--kills", "0", "--", "python", "x.py"], "--kills must be at least 1"),
        (["--", "python", "missing.py"], "missing.py: no such file"),
        (["--", "no-such-command"], "no-such-command: no such command"),
        (["--scratch", "nowhere", "--", "python", "x.py"], "--scratch nowhere: no such folder"),
    ):
        assert wait_for(begin(tmp_path, tmp_path, ["--json", *options], tmp_path / "said")) == 2
        assert message in json.loads((tmp_path / "said").read_text())["error"]["message"]
    assert not (tmp_path / "ran").exists()
