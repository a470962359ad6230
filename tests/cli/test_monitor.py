"""`tranlogs monitor`, on a run of PyTorch."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.conftest import Cli


def files(run: Path) -> dict[str, int]:
    return {
        str(path.relative_to(run)): path.stat().st_size for path in run.rglob("*") if path.suffix in (".seg", ".safetensors")
    }


def test_a_dry_run_shows_what_would_go_and_why_and_changes_nothing(cli: Cli, run: Path) -> None:
    before = files(run)
    called = cli("monitor", run, "--budget", "1KiB", "--dry-run", "--json")
    assert called.code == 0
    (journal,) = called.json["journals"]
    assert journal["anchor"].startswith("step-")
    assert journal["wants_checkpoint"] is True
    assert journal["bytes_after"] < journal["bytes"]
    assert {row["name"] for row in journal["pruned"]} > {"step-0000000000-1"} or journal["pruned"]
    assert all("over budget" in row["why"] for row in journal["pruned"])
    assert files(run) == before
    shown = cli("monitor", run, "--budget", "1KiB", "--dry-run").out
    assert "over budget, and" in " ".join(shown.split())
    assert "with protected data alone" in shown


def test_once_prunes_and_the_run_replays_to_the_same_bits(cli: Cli, run: Path, tmp_path: Path) -> None:
    assert cli("replay", run, "--out", tmp_path / "before.safetensors").code == 0
    called = cli("monitor", run.parent, "--budget", "64KiB", "--once", "--json")
    assert called.code == 0
    assert len(called.json["journals"][0]["pruned"]) == 2
    assert cli("replay", run, "--out", tmp_path / "after.safetensors").code == 0
    before, after = (load_file(tmp_path / f"{name}.safetensors") for name in ("before", "after"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert cli("verify", run).code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--budget", "much"], "--budget 'much': give a size like \"512MiB\""),
        (["--interval", "soon"], "--interval 'soon': give a time"),
        (["--high", "0.5", "--low", "0.8"], "0 < low <= high <= 1"),
        (["--alpha-newer", "7"], "alpha newer must be a number from 0 to 1, got 7.0"),
        (["--max-checkpoints", "0"], "checkpoints_max must be at least 1, got 0"),
        (["--token-file", "token"], "--token-file and --no-auth require --http"),
        (["--no-auth"], "--token-file and --no-auth require --http"),
        (["--http", ":0", "--token-file", "token", "--no-auth"], "--token-file and --no-auth exclude each other"),
    ],
)
def test_wrong_settings_are_usage_errors(cli: Cli, run: Path, arguments: list[str], said: str) -> None:
    called = cli("monitor", run, "--once", *arguments)
    assert called.code == 2
    assert said in called.err


def test_a_folder_without_a_run_is_named(cli: Cli, tmp_path: Path) -> None:
    called = cli("monitor", tmp_path, "--once")
    assert called.code == 2
    assert str(tmp_path) in called.err


def test_the_daemon_logs_json_and_ends_at_sigterm(run: Path) -> None:
    call = [sys.executable, "-m", "tranlogs"]
    command = [*call, "monitor", str(run), "--interval", "50ms", "--log-json", "--budget", "1GiB", "--http", ":0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        served, line = (json.loads(daemon.stderr.readline()) for _ in range(2))
        assert line["level"] == "info"
        assert line["message"].endswith(": watching")
        url = served["message"].removeprefix("the page is at ")
        metrics = ""
        while "tranlogs_watched{" not in metrics:
            with urllib.request.urlopen(url + "metrics", timeout=10) as answer:
                metrics = answer.read().decode()
        assert 'tranlogs_step{journal="' in metrics
        page = ""
        while "of 1.0 GiB" not in page:
            with urllib.request.urlopen(url, timeout=10) as answer:
                page = answer.read().decode()
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
