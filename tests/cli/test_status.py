from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tranlogs.catalog import Catalog, Incident
from tranlogs_torch import LoggedOptimizer

from .conftest import STEPS, Cli, train


@pytest.fixture
def screen_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the width that a terminal would have."""
    monkeypatch.setenv("COLUMNS", "80")


def test_status_of_a_closed_run(cli: Cli, run: Path) -> None:
    called = cli("status", run, "--json")
    assert called.code == 0
    assert called.json["problems"] == []
    (rank,) = called.json["ranks"]
    assert rank["framework"] == "torch"
    assert rank["writer"]["is_alive"] is False
    assert rank["watermarks"]["committed"] == STEPS
    name = rank["checkpoints"][-1]["name"]
    assert rank["recovery"] == {"step": STEPS, "checkpoint": name, "replay_steps": 1, "computed_again": 0}
    assert [row["step"] for row in rank["checkpoints"]] == [0, 4, 8]
    assert {row["state"] for row in rank["segments"]} == {"sealed"}
    assert 0 < rank["bytes"]["log"] <= rank["bytes"]["allocated"]
    assert rank["bytes"]["checkpoints"] == sum(row["nbytes"] for row in rank["checkpoints"])
    assert rank["environment"]["optimizers"] == {"main": "torch.optim.adamw.AdamW"}
    assert rank["incidents"] == []


def test_status_fits_a_screen_of_80_columns(cli: Cli, run: Path, screen_of_80_columns: None) -> None:
    called = cli("status", run)
    assert called.code == 0
    assert f"step {STEPS}: survives the process" in called.out
    assert f"goes back to step {STEPS}: checkpoint 8 and 1 step of log" in called.out
    assert "nobody (finished: process" in called.out
    assert "archived" not in called.out  # there is no store
    lines = [line for line in called.out.splitlines() if str(run) not in line]
    assert max(len(line) for line in lines) <= 80


def test_status_takes_a_rank_folder(cli: Cli, run: Path) -> None:
    whole, one = cli("status", run, "--json").json, cli("status", run / "rank0", "--json").json
    assert whole["ranks"] == one["ranks"]


def test_status_lists_all_ranks_by_number(cli: Cli, run: Path) -> None:
    for number in (10, 2):
        shutil.copytree(run / "rank0", run / f"rank{number}")
    found = cli("status", run, "--json").json
    assert [Path(rank["folder"]).name for rank in found["ranks"]] == ["rank0", "rank2", "rank10"]


def test_status_shows_suspended_logging_as_a_problem(cli: Cli, run: Path) -> None:
    catalog = Catalog.open(run / "rank0", writable=True)
    with catalog.transaction() as tables:
        tables.put("incident/000001", Incident(1, "No space left on device", 7, time.time()))
    catalog.close()
    called = cli("status", run)
    assert called.code == 1
    assert "logging is suspended since step 7: No space left on device" in " ".join(called.out.split())


def test_an_incident_that_is_over_is_shown_and_no_problem(cli: Cli, run: Path) -> None:
    catalog = Catalog.open(run / "rank0", writable=True)
    with catalog.transaction() as tables:
        tables.put("incident/000001", Incident(1, "No space left on device", 3, time.time(), 4, time.time()))
    catalog.close()
    called = cli("status", run)
    assert called.code == 0
    assert "No space left on device" in called.out


def test_a_run_that_holds_nothing_yet_is_no_problem(cli: Cli, tmp_path: Path) -> None:
    from torch import nn, optim

    LoggedOptimizer(optim.SGD(nn.Linear(2, 2).parameters()), tmp_path / "run").close()
    called = cli("status", tmp_path / "run")
    assert called.code == 0
    assert "the run is still empty" in called.out


def test_timelines_are_shown_once_there_are_two(cli: Cli, run: Path) -> None:
    train(run, 7, target=6)
    found = cli("status", run, "--json").json["ranks"][0]
    assert (found["timeline"], found["watermarks"]["committed"]) == (2, 7)
    assert [(row["number"], row["parent"], row["fork_step"]) for row in found["timelines"]] == [(1, 0, 0), (2, 1, 6)]
    assert "left timeline" in cli("status", run).out
    assert cli("log", run, "--json", "-n", 0).json["ranks"][0]["records"][-1]["step"] == 7


def interrupted(monkeypatch: pytest.MonkeyPatch, looks: int) -> list[float]:
    """Ctrl-C in the pause after so many looks; the pauses that were made."""
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == looks:
            raise KeyboardInterrupt

    monkeypatch.setattr("tranlogs.cli.commands.status.time.sleep", nap)
    return naps


def test_watch_as_json_prints_look_after_look(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps = interrupted(monkeypatch, 3)
    called = cli("status", run, "--watch", "--json")
    assert (called.code, naps) == (0, [2.0] * 3)
    decoder, text, looks = json.JSONDecoder(), called.out.strip(), 0
    while text:
        found, end = decoder.raw_decode(text)
        assert found["ranks"][0]["watermarks"]["committed"] == STEPS
        text, looks = text[end:].strip(), looks + 1
    assert looks == 3


def test_watch_without_a_terminal_prints_look_after_look(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps = interrupted(monkeypatch, 3)
    called = cli("status", run, "--watch", "--interval", "50ms")
    assert (called.code, naps) == (0, [0.05] * 3)
    assert called.out.count(f"step {STEPS}: survives the process") == 3
    assert "\x1b" not in called.out


def test_watch_in_a_terminal_shows_the_last_look_in_place(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    interrupted(monkeypatch, 2)
    called = cli("status", run, "--watch")
    assert called.code == 0, "Ctrl-C is how it ends"
    assert f"step {STEPS}: survives the process" in called.out
    assert "\x1b[1A" in called.out, "the second look is written over the first"


def test_an_interval_of_nothing_is_refused(cli: Cli, run: Path) -> None:
    called = cli("status", run, "--watch", "--interval", "0")
    assert called.code == 2
    assert "--interval must be positive, got 0" in called.err


def test_what_would_be_lost_now(cli: Cli, run: Path) -> None:
    (rank,) = cli("status", run, "--json").json["ranks"]
    assert {scope: (one["safe_step"], one["steps"]) for scope, one in rank["lost_now"].items()} == {
        "process": (STEPS, 0),
        "machine": (8, 1),
        "site": (0, STEPS),
    }
    assert rank["lost_now"]["site"]["nothing_left"] == "there is no store"
    assert (rank["monitor"], rank["evaluation"]) == (None, None)
    lines = [" ".join(line.split()) for line in cli("status", run).out.splitlines()]
    assert "process dies loses no finished step" in lines
    # durability="process": the checkpoint of step 8 is on disk, and both lines say so.
    assert "synced step 8, by its checkpoint: survives power loss (log: step 0)" in lines
    assert "power fails loses 1 step: the checkpoint of step 8 is left" in lines
    assert "site is gone loses everything: there is no store" in lines


def test_bytes_that_nobody_has_read_are_not_said_to_be_sound(cli: Cli, run: Path) -> None:
    """A damaged byte is the business of `verify`; `status` says once that it does not look."""
    shutil.copytree(run / "rank0", run / "rank1")
    for path in run.glob("rank*/log/*.seg"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(b"\xff\x00\xff")
    assert cli("verify", run).code == 1
    called = cli("status", run)
    assert called.out.count("(the bytes of log and checkpoints are checked by `tranlogs verify`, not here)") == 1


def test_a_run_in_memory_is_not_said_to_survive_power_loss(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tranlogs.journal.file_system.file_system_of", lambda _: "tmpfs")
    called = cli("status", run)
    assert "to memory only (tmpfs)" in called.out
    assert "loses everything: the run lies in memory (tmpfs)" in called.out
    assert "survives power loss" not in called.out


def test_what_a_monitor_has_seen_is_shown(cli: Cli, run: Path, screen_of_80_columns: None) -> None:
    assert cli("monitor", run, "--once", "--budget", "100MiB").code == 0
    (rank,) = cli("status", run, "--json").json["ranks"]
    evaluation = rank["evaluation"]
    assert evaluation["budget_bytes"] == 100 << 20
    assert evaluation["bytes"] == rank["bytes"]["allocated"] + rank["bytes"]["checkpoints"]
    sealed = [row["ordinal"] for row in rank["segments"] if row["state"] == "sealed"]
    assert [row["ordinal"] for row in evaluation["segments"]] == sealed
    assert rank["monitor"]["is_alive"] is False
    called = cli("status", run)
    out = " ".join(called.out.split())
    assert "none now; evaluated" in out
    assert "of 100.0 MiB (" in out
    protected = sum(row["protected"] for row in evaluation["segments"])
    assert f"{len(sealed) - protected} segments can be pruned, {protected} protected" in out.replace(
        "1 segment ", "1 segments "
    )
    lines = [line for line in called.out.splitlines() if str(run) not in line]
    assert max(len(line) for line in lines) <= 80


def test_status_changes_nothing_in_the_run(cli: Cli, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and not path.name.endswith("-lock")}
    cli("status", run)
    cli("log", run)
    cli("verify", run)
    assert {path: path.read_bytes() for path in before} == before
    assert {path for path in run.rglob("*") if path.is_file() and not path.name.endswith("-lock")} == set(before)


def test_train_is_repeatable(tmp_path: Path) -> None:
    a, b = train(tmp_path / "a"), train(tmp_path / "b")
    assert all((x == y).all() for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_a_folder_of_runs_has_a_line_for_each(cli: Cli, run: Path, tmp_path: Path, screen_of_80_columns: None) -> None:
    shutil.copytree(run, tmp_path / "other")
    (tmp_path / "none").mkdir()
    found = cli("status", tmp_path, "--json")
    assert found.code == 0
    assert [Path(line["run"]).name for line in found.json["runs"]] == ["other", "run"]
    for line in found.json["runs"]:
        assert (line["ranks"], line["state"], line["committed"], line["recovery_step"]) == (1, "closed", STEPS, STEPS)
    shown = cli("status", tmp_path)
    assert shown.code == 0
    assert all(name in shown.out for name in ("other", "run", "closed"))
    assert max(len(line) for line in shown.out.splitlines()) <= 80


def test_long_name_widens_no_row(cli: Cli, run: Path, tmp_path: Path) -> None:
    name = f"first-{'x' * 80}-last"
    shutil.copytree(run, tmp_path / name)
    shown = cli("status", tmp_path)
    assert max(len(line) for line in shown.out.splitlines()) <= 80
    assert re.search(r"^first-x+…x+-last +closed ", shown.out, re.M)
    found = cli("status", tmp_path, "--json")
    assert str(tmp_path / name) in [line["run"] for line in found.json["runs"]]


def test_a_damaged_run_in_a_folder_of_runs_is_a_problem(cli: Cli, run: Path, tmp_path: Path) -> None:
    (run / "rank0" / "catalog.lmdb").write_bytes(b"nothing")
    found = cli("status", tmp_path)
    assert found.code == 1
    assert "catalog" in found.out


def test_an_unreadable_run_is_reported_in_its_place(cli: Cli, run: Path, tmp_path: Path) -> None:
    for name in ("another", "newer", "zlast"):
        shutil.copytree(run, tmp_path / name)
    row = tmp_path / "newer" / "rank0"
    catalog = Catalog.open(row, writable=True)
    about = catalog.run()
    assert about is not None
    with catalog.transaction() as tables:
        tables.put("run", replace(about, format=99))
    catalog.close()
    found = cli("status", tmp_path, "--json")
    assert found.code == 1
    states = {Path(line["run"]).name: (line["state"], line["committed"]) for line in found.json["runs"]}
    assert states == {"another": ("closed", STEPS), "newer": ("unreadable", None)} | dict.fromkeys(
        ("run", "zlast"), ("closed", STEPS)
    )
    (problem,) = found.json["problems"]
    assert str(tmp_path / "newer") in problem
    assert "version 99" in problem
    shown = cli("status", tmp_path)
    assert shown.code == 1
    lines = [line.split()[:2] for line in shown.out.splitlines() if line]
    assert ["newer", "unreadable"] in lines
    assert lines.index(["another", "closed"]) < lines.index(["newer", "unreadable"]) < lines.index(["zlast", "closed"])
    assert problem in shown.out


def test_a_folder_that_cannot_be_listed_ends_no_overview(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    exists = Path.exists

    def guarded(path: Path, **options: Any) -> bool:
        if "closed" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", guarded)
    found = cli("status", tmp_path, "--json")
    assert found.code == 1
    assert [line["state"] for line in found.json["runs"]] == ["unreadable", "closed"]
    assert "Permission denied" in found.json["problems"][0]


def test_a_folder_without_runs_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert cli("status", tmp_path).code == 2


def test_one_run_of_a_folder_is_watched(cli: Cli, run: Path, tmp_path: Path) -> None:
    found = cli("status", tmp_path, "--watch")
    assert found.code == 2
    assert str(run) in found.err
