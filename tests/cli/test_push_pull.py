"""`tranlogs push` and `pull`, and a monitor that ships, on a run of PyTorch."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.conftest import STEPS, Cli, train

CALL = [sys.executable, "-m", "tranlogs"]


def test_a_run_comes_back_from_a_store_and_trains_on_to_the_same_bits(cli: Cli, tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    train(run)
    called = cli("push", run, store, "--json")
    assert called.code == 0
    (journal,) = called.json["journals"]
    assert (journal["committed"], journal["archived"], journal["persisted"], journal["problem"]) == (STEPS, STEPS, STEPS, None)
    called = cli("pull", f"{store.as_uri()}/run", tmp_path / "elsewhere/run", "--json")
    assert called.code == 0
    (journal,) = called.json["journals"]
    assert (journal["step"], journal["steps_lost"]) == (STEPS, 0)
    for name in (run, tmp_path / "elsewhere/run"):
        assert cli("replay", name, "--out", tmp_path / f"{name.parent.name}.safetensors").code == 0
    here, there = (load_file(tmp_path / f"{name}.safetensors") for name in (tmp_path.name, "elsewhere"))
    assert here.keys() == there.keys()
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert cli("verify", tmp_path / "elsewhere/run").code == 0
    here, there = train(run, STEPS + 4).state_dict(), train(tmp_path / "elsewhere/run", STEPS + 4).state_dict()
    assert all(torch.equal(here[name], there[name]) for name in here)


def test_what_people_see(cli: Cli, run: Path, tmp_path: Path) -> None:
    shown = cli("push", run, tmp_path / "store").out
    assert f"step {STEPS} of {STEPS}" in shown
    shown = cli("pull", f"{tmp_path / 'store'}/run", tmp_path / "b").out
    assert f"{STEPS}, from the checkpoint of step 8" in shown
    assert f"step {STEPS}: durable in the store" in cli("status", run).out


def test_a_store_shows_what_it_holds(cli: Cli, run: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    assert "the store holds no runs" in cli("status", store.as_uri()).out
    cli("push", run, store)
    shutil.copytree(run, tmp_path / "other")
    cli("push", tmp_path / "other", store, "--take-over")
    called = cli("status", store.as_uri(), "--json")
    assert called.code == 0
    assert [(one["name"], one["ranks"], one["step"]) for one in called.json["runs"]] == [
        ("other", 1, STEPS),
        (run.name, 1, STEPS),
    ]
    shown = cli("status", store.as_uri()).out
    assert all(words in shown for words in ("other", run.name, str(STEPS)))
    called = cli("pull", store.as_uri(), tmp_path / "b")
    assert called.code == 2
    assert f"several runs: other, {run.name}" in called.err
    for manifest in (store / "other/rank0/manifests").iterdir():
        manifest.write_bytes(b"{}")
    called = cli("status", store.as_uri(), "--json")
    assert called.code == 1
    assert [one["step"] for one in called.json["runs"]] == [None, STEPS]
    assert "problem: " in cli("status", store.as_uri()).out


def test_an_address_is_no_folder_of_a_run(cli: Cli) -> None:
    called = cli("log", "alluxio://host/runs/gpt")
    assert called.code == 2
    assert "`tranlogs status URL` lists its runs" in called.err


def test_a_run_that_is_there_is_not_overwritten(cli: Cli, run: Path, tmp_path: Path) -> None:
    cli("push", run, tmp_path / "store")
    called = cli("pull", f"{tmp_path / 'store'}/run", run)
    assert called.code == 2
    assert "exists already" in called.err


def test_damage_in_the_store_is_named_and_the_exit_code_is_1(cli: Cli, run: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert cli("push", run, store).code == 0
    victim = sorted((store / "run/rank0/objects/log").iterdir())[-1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    called = cli("pull", f"{store}/run", tmp_path / "b", "--json")
    assert called.code == 1
    (journal,) = called.json["journals"]
    assert journal["steps_lost"] > 0
    assert any(victim.name in note for note in journal["notes"])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nothing://there", "store nothing://there: Protocol not known"),
        ("file://host/path", "the address of a folder has no host"),
        ("/proc/tranlogs/store", "/proc/tranlogs"),
    ],
)
def test_a_store_that_cannot_be_used_is_named(cli: Cli, run: Path, url: str, said: str) -> None:
    called = cli("push", run, url, "--patience", "300ms")
    assert called.code in (1, 2)
    assert said in called.err + called.out


def test_an_address_without_a_run_is_named(cli: Cli, tmp_path: Path) -> None:
    called = cli("pull", f"{tmp_path}/none", tmp_path / "b")
    assert called.code == 2
    assert "the store holds no run at this address" in called.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--store-checkpoints", "0"], "--store-checkpoints must be a number from 1 on"),
        (["--max-lag", "soon"], "--max-lag 'soon'"),
        (["--bandwidth", "much"], "--bandwidth 'much'"),
        (["--once"], "use `tranlogs push RUN URL` to ship a run once"),
    ],
)
def test_wrong_store_settings_are_usage_errors(cli: Cli, run: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    called = cli("monitor", run, "--store", tmp_path / "store", *arguments)
    assert called.code == 2
    assert said in called.err


def test_a_monitor_ships_what_a_killed_trainer_left(cli: Cli, tmp_path: Path) -> None:
    """The trainer dies by SIGKILL with an open segment; the monitor seals and ships it, and another machine goes on."""
    run, store = tmp_path / "run", tmp_path / "store"
    child = (
        "import sys, torch; torch.set_num_threads(1); from pathlib import Path; from tests.cli.conftest import train; "
        "import os; train(Path(sys.argv[1]), 7, lambda step: os.kill(os.getpid(), 9) if step == 6 else None)"
    )
    command = [*CALL, "monitor", str(tmp_path), "--store", str(store), "--interval", "50ms", "--log-json"]
    trainer = subprocess.run([sys.executable, "-c", child, str(run)], check=False, timeout=120)
    assert trainer.returncode == -signal.SIGKILL
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        lines = []
        while not any("sealed" in line for line in lines):
            lines.append(json.loads(daemon.stderr.readline())["message"])
        for _ in range(200):
            marks = cli("status", run, "--json").json["ranks"][0]["watermarks"]
            if marks["persisted"] == 5:
                break
            signal.sigtimedwait([], 0.05)
        assert marks["persisted"] == marks["committed"] == 5, "step 6 had no boundary yet"
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
    assert cli("pull", f"{store}/run", tmp_path / "new/run").code == 0
    expected = train(tmp_path / "never-killed", STEPS).state_dict()
    found = train(tmp_path / "new/run", STEPS).state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
