"""`tranlogs monitor`, `push` and `pull`, and stores: what changes a run, or brings it elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from .conftest import STEPS, Cli, segment_files, train

# The monitor.


def files(run: Path) -> dict[str, int]:
    return {
        str(path.relative_to(run)): path.stat().st_size for path in run.rglob("*") if path.suffix in (".seg", ".safetensors")
    }


def assert_same_weights(cli: Cli, one: Path, other: Path) -> None:
    """Of two runs, as `tranlogs replay` writes them."""
    found = []
    for run in (one, other):
        out = run / "state.safetensors"
        assert cli("replay", run, "--out", out).code == 0
        found.append(load_file(out))
        out.unlink()
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_monitor_prunes_as_a_dry_run_says_and_the_run_replays_to_the_same_bits(cli: Cli, run: Path, trained: Path) -> None:
    before = files(run)
    called = cli("monitor", run, "--budget", "1KiB", "--dry-run", "--json")
    assert called.code == 0
    (journal,) = called.json["journals"]
    assert journal["anchor"].startswith("step-")
    assert journal["wants_checkpoint"] is True
    assert journal["bytes_after"] < journal["bytes"]
    assert journal["pruned"]
    assert all("over budget" in row["why"] for row in journal["pruned"])
    shown = " ".join(cli("monitor", run, "--budget", "1KiB", "--dry-run").out.split())
    assert "over budget, and" in shown
    assert "with protected data alone" in shown
    assert files(run) == before
    called = cli("monitor", run.parent, "--budget", "64KiB", "--once", "--json")
    assert (called.code, len(called.json["journals"][0]["pruned"])) == (0, 2)
    assert len(files(run)) < len(before)
    assert_same_weights(cli, run, trained)
    assert cli("verify", run).code == 0


def test_the_dashboard_says_where_it_is_who_may_read_it_and_what_is_missing(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/monitor/test_page.py has it as a process."""
    called = cli("monitor", run, "--http", "192.0.2.1:0")
    words = "--http 192.0.2.1:0: cannot listen on this address (Cannot assign requested address)"
    assert (called.code, words in " ".join(called.err.split())) == (2, True)
    monkeypatch.setattr("tranlogs_monitor.command.Daemon.run", lambda daemon: None)  # it ends at once
    monkeypatch.delenv("TRANLOGS_HTTP_TOKEN", raising=False)
    called = cli("monitor", run, "--http", "0.0.0.0:0")
    assert (called.code, "other machines reach this address. Set TRANLOGS_HTTP_TOKEN" in called.err) == (2, True)
    for address in ("127.0.0.2:0", "0"):
        assert cli("monitor", run, "--http", address).code == 0
    for address in ("web", ":x", ":70000", ":²"):
        called = cli("monitor", run, "--http", address)
        assert (called.code, "--http" in called.err) == (2, True)
    for token in (" \n", "two words", "two\nlines", "z\u00e4h"):
        monkeypatch.setenv("TRANLOGS_HTTP_TOKEN", token)
        called = cli("monitor", run, "--http", ":0")
        assert (called.code, called.err.startswith("tranlogs: TRANLOGS_HTTP_TOKEN: ")) == (2, True)
    monkeypatch.setenv("TRANLOGS_HTTP_TOKEN", "correct-horse")
    called = cli("monitor", run, "--http", "0.0.0.0:0")
    assert (called.code, "requires the token of TRANLOGS_HTTP_TOKEN" in called.err) == (0, True)
    assert "correct-horse" not in called.err
    monkeypatch.setitem(sys.modules, "tranlogs_monitor.dashboard.metrics", None)
    called = cli("monitor", run, "--http", ":0")
    assert (called.code, "pip install 'tranlogs[monitor]'" in " ".join(called.err.split())) == (2, True)


# Stores.


def test_a_run_comes_back_from_a_store_and_trains_on_to_the_same_bits(cli: Cli, run: Path, tmp_path: Path) -> None:
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere/run"
    called = cli("push", run, store, "--json")
    assert called.code == 0
    (journal,) = called.json["journals"]
    assert (journal["committed"], journal["archived"], journal["persisted"], journal["problem"]) == (STEPS, STEPS, STEPS, None)
    called = cli("pull", f"{store.as_uri()}/run", elsewhere, "--json")
    assert called.code == 0
    (journal,) = called.json["journals"]
    assert (journal["step"], journal["steps_lost"]) == (STEPS, 0)
    assert_same_weights(cli, run, elsewhere)
    assert cli("verify", elsewhere).code == 0
    here, there = train(run, STEPS + 4).state_dict(), train(elsewhere, STEPS + 4).state_dict()
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert f"step {STEPS + 4} of {STEPS + 4}" in cli("push", run, store).out
    assert f"step {STEPS + 4}: durable in the store" in cli("status", run).out
    assert f"{STEPS + 4}, from the checkpoint of step 12\n" in cli("pull", f"{store}/run", tmp_path / "b").out
    called = cli("pull", f"{store}/run", run)
    assert (called.code, "exists already" in called.err) == (2, True)


def test_a_store_shows_what_it_holds(cli: Cli, run: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    assert "the store holds no runs" in cli("status", store.as_uri()).out
    cli("push", run, store)
    shutil.copytree(run, tmp_path / "other")
    cli("push", tmp_path / "other", store, "--take-over")
    called = cli("status", store.as_uri(), "--json")
    assert called.code == 0
    found = [(one["name"], one["ranks"], one["step"]) for one in called.json["runs"]]
    assert found == [("other", 1, STEPS), (run.name, 1, STEPS)]
    shown = cli("status", store.as_uri()).out
    assert all(words in shown for words in ("other", run.name, str(STEPS)))
    called = cli("pull", store.as_uri(), tmp_path / "b")
    assert (called.code, f"several runs: other, {run.name}" in called.err) == (2, True)
    for manifest in (store / "other/rank0/manifests").iterdir():
        manifest.write_bytes(b"{}")
    called = cli("status", store.as_uri(), "--json")
    assert (called.code, [one["step"] for one in called.json["runs"]]) == (1, [None, STEPS])
    assert "problem: " in cli("status", store.as_uri()).out
    victim = sorted((store / "run/rank0/objects/log").iterdir())[-1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    called = cli("pull", f"{store}/run", tmp_path / "b", "--json")
    (journal,) = called.json["journals"]
    assert (called.code, journal["steps_lost"] > 0) == (1, True)
    assert any(victim.name in note for note in journal["notes"])


def test_a_store_is_verified_by_a_round_trip(cli: Cli, tmp_path: Path) -> None:
    """On folders; tests/alluxio has it on clusters."""
    url = (tmp_path / "store").as_uri()
    called = cli("verify", url)
    assert called.code == 0
    for words in ("round trip", "MiB/s", "durable", "usable"):
        assert words in called.out
    found = cli("verify", url, "--json").json
    assert (found["is_usable"], found["url"], found["problem"], found["seconds"]["put"] > 0) == (True, url, None, True)
    (tmp_path / "file").write_text("")
    url = (tmp_path / "file/store").as_uri()
    called = cli("verify", url, "--json")
    assert (called.code, called.json["is_usable"], "Not a directory" in called.json["problem"]) == (1, False, True)
    assert "problem: " in cli("verify", url).out


# `verify --repair`.


def test_a_sound_catalog_is_left_alone_and_a_damaged_or_missing_one_is_rebuilt(cli: Cli, run: Path) -> None:
    path = run / "rank0/catalog.lmdb"
    before, whole = path.read_bytes(), cli("status", run, "--json").json["ranks"][0]
    called = cli("verify", run, "--repair", "--json")
    assert (called.code, called.json["ranks"][0]["repaired"], path.read_bytes() == before) == (0, [], True)
    path.write_bytes(b"nothing")
    assert cli("status", run).code == 1
    called = cli("verify", run, "--repair", "--json")
    kept = [path.name for path in path.parent.glob("catalog.lmdb.broken-*")]
    assert called.code == 0
    assert any(kept[0] in line for line in called.json["ranks"][0]["repaired"])
    again = cli("status", run, "--json")
    assert (again.code, again.json["ranks"][0]["watermarks"]["committed"]) == (0, STEPS)
    for key in ("recovery", "run_id", "framework", "timeline"):
        assert again.json["ranks"][0][key] == whole[key]
    path.unlink()
    assert cli("verify", run, "--repair").code == cli("status", run).code == 0
    checkpoint = max((run / "rank0/checkpoints").iterdir())
    shutil.rmtree(checkpoint)
    assert cli("verify", run).code == 1
    called = cli("verify", run, "--repair")
    assert (called.code, "rebuilt from" in called.out) == (0, True), called.out
    assert checkpoint.name not in cli("status", run).out


def test_damaged_parts_are_replaced_by_the_copies_of_the_store_and_named_without_one(
    cli: Cli, run: Path, tmp_path: Path
) -> None:
    checkpoint, path = max((run / "rank0/checkpoints").iterdir()), segment_files(run)[0]
    shutil.copytree(run, tmp_path / "without")
    assert cli("push", run, (tmp_path / "store").as_uri()).code == 0
    for each in (run, tmp_path / "without"):
        os.truncate(each / path.relative_to(run), 20_000)
        (each / checkpoint.relative_to(run) / "meta.bin").unlink()
        assert cli("verify", each).code == 1
    called = cli("verify", run, "--repair", "--json")
    assert (called.code, called.json["problems"]) == (0, [])
    assert {line.partition(" ")[0] for line in called.json["ranks"][0]["repaired"]} == {path.name, checkpoint.name}
    assert cli("verify", run).code == 0
    called = cli("verify", tmp_path / "without", "--repair")
    assert (called.code, checkpoint.name in called.out, path.name in called.out) == (1, True, True)
