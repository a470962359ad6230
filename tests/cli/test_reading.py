"""`status`, `log`, `verify` and `replay`: what they read from a run, dead or alive."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn

from tests.kills.launchers import forked, wait_for
from tests.support.damage import tensor_span
from tranlogs.log.reader import SegmentReader
from tranlogs.log.record_format import Location
from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import parse_segment_name
from tranlogs_torch import LoggedOptimizer

from .conftest import STEPS, Cli, flip, segment_files, train

# status


def test_status_as_json(cli: Cli, run: Path) -> None:
    found = cli("status", run, "--json").json
    (rank,) = found["ranks"]
    assert (found["problems"], rank["framework"], rank["incidents"]) == ([], "torch", [])
    assert (rank["writer"]["is_alive"], rank["monitor"], rank["evaluation"]) == (False, None, None)
    assert rank["watermarks"]["committed"] == STEPS
    name = rank["checkpoints"][-1]["name"]
    assert rank["recovery"] == {"step": STEPS, "checkpoint": name, "replay_steps": 1, "computed_again": 0}
    assert [row["step"] for row in rank["checkpoints"]] == [0, 4, 8]
    assert {row["state"] for row in rank["segments"]} == {"sealed"}
    assert 0 < rank["bytes"]["log"] <= rank["bytes"]["files"]
    assert rank["bytes"]["checkpoints"] == sum(row["nbytes"] for row in rank["checkpoints"])
    assert rank["environment"]["optimizers"] == {"main": "torch.optim.adamw.AdamW"}
    assert {scope: (one["safe_step"], one["steps"]) for scope, one in rank["lost_now"].items()} == {
        "process": (STEPS, 0),
        "machine": (8, 1),
        "site": (0, STEPS),
    }
    assert cli("status", run / "rank0", "--json").json["ranks"] == found["ranks"]
    for number in (10, 2):
        shutil.copytree(run / "rank0", run / f"rank{number}")
    folders = [Path(rank["folder"]).name for rank in cli("status", run, "--json").json["ranks"]]
    assert folders == ["rank0", "rank2", "rank10"]


def test_status_fits_a_screen_of_80_columns_and_shows_what_a_monitor_has_seen(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli("monitor", run, "--once", "--budget", "100MiB").code == 0
    (rank,) = cli("status", run, "--json").json["ranks"]
    evaluation = rank["evaluation"]
    assert evaluation["budget_bytes"] == 100 << 20
    assert evaluation["bytes"] == rank["bytes"]["files"] + rank["bytes"]["checkpoints"]
    sealed = [row["ordinal"] for row in rank["segments"] if row["state"] == "sealed"]
    assert [row["ordinal"] for row in evaluation["segments"]] == sealed
    called = cli("status", run)
    out = " ".join(called.out.split())
    assert "archived" not in out, "there is no store"
    assert "none now; evaluated" in out
    assert "of 100.0 MiB (" in out
    protected = sum(row["protected"] for row in evaluation["segments"])
    words = out.replace("1 segment ", "1 segments ")
    assert f"{len(sealed) - protected} segments can be pruned, {protected} protected" in words
    name = f"first-{'x' * 80}-last"
    shutil.copytree(run, tmp_path / name)
    shown = cli("status", tmp_path).out
    assert re.search(r"^first-x+…x+-last +closed ", shown, re.M)
    lines = [line for line in (called.out + shown).splitlines() if str(run) not in line]
    assert max(len(line) for line in lines) <= 80


def test_a_folder_of_runs_has_a_line_for_each_whatever_they_are(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("another", "damaged", "zlast"):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "damaged/rank0/catalog.lmdb").write_bytes(b"nothing")
    (tmp_path / "none").mkdir()
    (tmp_path / "closed").mkdir()
    LoggedOptimizer(torch.optim.SGD(torch.nn.Linear(2, 2).parameters()), tmp_path / "empty").close()
    exists = Path.exists

    def guarded(path: Path, **options: Any) -> bool:
        if "closed" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", guarded)
    found = cli("status", tmp_path, "--json")
    assert found.code == 1
    lines = {Path(line["run"]).name: line for line in found.json["runs"]}
    assert list(lines) == ["another", "closed", "damaged", "empty", "run", "zlast"]
    for name in ("another", "run", "zlast"):
        line = lines[name]
        assert (line["ranks"], line["state"], line["committed"], line["recovery_step"]) == (1, "closed", STEPS, STEPS)
    assert lines["closed"]["state"] == "unreadable"
    problems = "\n".join(found.json["problems"])
    assert "Permission denied" in problems
    assert str(tmp_path / "damaged") in problems
    assert cli("status", tmp_path / "empty").code == 0
    assert "the run is still empty" in cli("status", tmp_path / "empty").out


def test_timelines_are_shown_once_there_are_two(cli: Cli, run: Path) -> None:
    train(run, 7, target=6)
    found = cli("status", run, "--json").json["ranks"][0]
    assert (found["timeline"], found["watermarks"]["committed"]) == (2, 7)
    assert [(row["number"], row["parent"], row["fork_step"]) for row in found["timelines"]] == [(1, 0, 0), (2, 1, 6)]
    assert "left timeline" in cli("status", run).out
    assert cli("log", run, "--json", "-n", 0).json["ranks"][0]["records"][-1]["step"] == 7


def test_watch_shows_look_after_look_until_ctrl_c(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) % 3 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr("tranlogs.cli.commands.status.time.sleep", nap)
    called = cli("status", run, "--watch", "--json")
    assert (called.code, naps, called.out.count(f'"committed": {STEPS}')) == (0, [2.0] * 3, 3)
    called = cli("status", run, "--watch", "--interval", "50ms")
    assert (called.code, naps[3:], called.out.count(f"step {STEPS}: survives the process")) == (0, [0.05] * 3, 3)
    assert "\x1b" not in called.out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[1A" in cli("status", run, "--watch").out, "in a terminal, a look is written over the one before"


def test_status_says_no_more_than_it_knows(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged byte is the business of `verify`; what lies in memory does not survive power loss."""
    shutil.copytree(run / "rank0", run / "rank1")
    for path in run.glob("rank*/log/*.seg"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(b"\xff\x00\xff")
    assert cli("verify", run).code == 1
    words = "(the bytes of log and checkpoints are checked by `tranlogs verify`, not here)"
    assert cli("status", run).out.count(words) == 1
    monkeypatch.setattr("tranlogs.journal.paths.file_system_of", lambda _: "tmpfs")
    out = cli("status", run).out
    assert "to memory only (tmpfs)" in out
    assert "loses everything: the run lies in memory (tmpfs)" in out
    assert "survives power loss" not in out


# log


def _records(cli: Cli, run: Path, *options: object) -> list[dict[str, Any]]:
    called = cli("log", run, "--json", *options)
    assert called.code == 0
    (rank,) = called.json["ranks"]
    return list(rank["records"])


def test_log_lists_every_record_in_order(cli: Cli, run: Path) -> None:
    records = _records(cli, run)
    steps = [record for record in records if record["kind"] == "gradients"]
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert [record["sequence"] for record in records] == list(range(1, len(records) + 1))
    assert {record["optimizer"] for record in steps} == {"main"}
    assert {record["tensors"] for record in steps} == {6}
    assert [record["lr"] for record in steps] == [[0.25, 0.5]] * 4 + [[0.125, 0.25]] * 4 + [[0.0625, 0.125]]
    assert all(record["is_committed"] for record in records)
    images = [record for record in records if record["kind"] == "image"]
    assert [(record["step"], record["tensors"]) for record in images] == [(5, 1)], "a write that no step made"
    boundaries = [record for record in records if record["is_boundary"]]
    assert [record["step"] for record in boundaries] == list(range(1, STEPS + 1))
    assert {record["scalars"]["broken"] for record in boundaries} == {"nan"}
    assert all(isinstance(record["scalars"]["loss"], float) for record in boundaries)
    table = [line.split() for line in cli("log", run).out.splitlines()[3:] if line.strip()]
    kinds = [line[1] for line in table if line[0].isdigit()]
    assert kinds == ["gradients"] * 5 + ["image"] + ["gradients"] * 4
    for limit, first in ((3, STEPS - 2), (1, STEPS), (100, 1), (0, 1)):
        assert _records(cli, run, "-n", limit) == [record for record in records if record["step"] >= first]


def test_a_record_in_full(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 4, STEPS):
        record, *_, boundary = [*_records(cli, run, "--step", step)] * 2
        assert (record["step"], record["kind"], boundary["is_boundary"]) == (step, "gradients", True)
        tensors = {tensor["name"]: tensor for tensor in record["tensors"]}
        weight = tensors["grad/0.weight"]
        assert (weight["dtype"], weight["shape"], weight["bytes"]) == ("float32", [8, 4], 128)
        (piece,) = record["pieces"]  # small tensors share one
        assert piece["bytes"] == sum(tensor["bytes"] for tensor in tensors.values())
        assert piece["codec"] in ("raw", "zero", "high16", "nonzero")
        assert len(piece["checksum"]) == 16
        assert record["body"]["hyper"][1]["betas"] == [0.9, 0.999]
        assert record["body"]["fingerprint"] == "full"
        assert {"tracked", "data", "buffers", "after", "rng"} <= set(boundary["body"])
        assert boundary["body"]["tracked"]["scheduler"]["last_epoch"] == step
        assert boundary["body"]["buffers"]["1.running_mean"] == {"dtype": "float32", "shape": [8]}
    out = cli("log", run, "--step", 4).out  # nothing is wrapped where stdout is no terminal
    about = {line.split("  ")[0]: line for line in out.splitlines() if line and not line.startswith(" ")}
    assert "last_epoch=" in about["tracked"]
    assert len(about["tracked"]) > 80
    assert all(line == line.rstrip() for line in out.splitlines())
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, cli("log", run, "--step", 4).out.splitlines())) <= 60


def _locations(path: Path) -> list[Location]:
    named = parse_segment_name(path.name)
    assert named is not None
    return scan(path, named[1])


def test_a_damaged_record_is_listed_as_damaged_and_one_with_a_row_is_shown_by_it(cli: Cli, run: Path) -> None:
    whole = _records(cli, run)
    path = segment_files(run)[0]
    locations = _locations(path)
    for location in locations[1:]:
        flip(path, location.offset + 30)
    assert _records(cli, run) == whole, "heads that are damaged in the file"
    damaged = next(location for location in locations if location.head.step == 2)
    flip(path, damaged.description_offset + 30)
    called = cli("log", run, "--json")
    assert called.code == 1
    records = {record["sequence"]: record for record in called.json["ranks"][0]["records"]}
    assert len(records) == len(whole)
    assert records[damaged.head.sequence]["kind"] == "damaged"
    assert f"{path}: step 2: the checksum of its description differs" in called.json["problems"][0]
    assert "damaged" in cli("log", run).out


# verify; tests of the checks themselves lie beside tranlogs/verify.py


def _damage_tensor(run: Path, step: int, name: str) -> Path:
    """Flip a byte of one gradient."""
    path = segment_files(run)[0]
    with SegmentReader(path) as reader:
        for location in _locations(path):
            entry = reader.decode(location)
            if entry.kind.is_step and entry.step == step:
                flip(path, tensor_span(entry, name)[0])
                return path
    raise AssertionError(f"no step {step}")


def test_a_damaged_tensor_is_named_with_file_step_and_name_and_replay_goes_on_behind_the_hole(cli: Cli, run: Path) -> None:
    step = 3
    path = _damage_tensor(run, step, "grad/2.weight")
    called = cli("verify", run, "--json")
    problems = {problem["tensor"]: problem for problem in called.json["problems"]}
    assert called.code == 1
    assert len(problems) == len(called.json["problems"]) == 6  # small tensors share a checksum, and are doubtful together
    assert (problems["grad/2.weight"]["path"], problems["grad/2.weight"]["step"]) == (str(path), step)
    told = cli("verify", run).out
    assert "6 problems" in told
    assert f"step {step}: tensor grad/2.weight: the checksum of its bytes differs" in " ".join(told.split())
    called = cli("verify", run, "--replay", "--json")
    assert called.code == 1
    assert {(problem["path"], problem["step"]) for problem in called.json["problems"]} == {(str(path), step)}
    replays = called.json["ranks"][0]["replays"]
    found = [(replay["checkpoint_step"], replay["step"], replay["exact"]) for replay in replays]
    assert found == [(0, 2, True), (4, STEPS, True)]


def test_what_needs_the_framework_says_what_to_install_and_damage_is_told_without_it(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tranlogs.frameworks.entry_points", lambda **_: [])
    assert cli("verify", run).code == 0
    called = cli("verify", run, "--replay")
    assert (called.code, "pip install 'tranlogs[torch]'" in called.err) == (2, True)
    path = _damage_tensor(run, 2, "grad/0.bias")
    called = cli("verify", run, "--replay", "--json")
    assert called.code == 1
    assert called.json["problems"][0]["path"] == str(path)


# A run that another process is writing.


@dataclass(frozen=True)
class Trainer:
    """A process that trains, and waits in the middle of its sixth step."""

    pid: int
    goes_on: Event

    def finish(self) -> int:
        """Let it train on to its end; return its exit status."""
        self.goes_on.set()
        return wait_for(self.pid)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    """A process in the middle of its sixth step: five are committed, the sixth is not."""
    forks = get_context("fork")
    is_there, goes_on = forks.Event(), forks.Event()

    def say(step: int) -> None:
        if step == 6:
            is_there.set()
            goes_on.wait()

    pid = forked(lambda: torch.save(train(tmp_path / "run", 10, say).state_dict(), tmp_path / "end.pt"))
    assert is_there.wait(60)
    yield Trainer(pid, goes_on)
    with suppress(ChildProcessError):  # it was waited for
        os.waitpid(pid, os.WNOHANG)
        os.kill(pid, signal.SIGKILL)
        wait_for(pid)


def test_a_live_run_is_read_without_disturbing_it(cli: Cli, trainer: Trainer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    status = cli("status", run, "--json")
    assert (status.code, status.json["problems"]) == (0, [])
    (rank,) = status.json["ranks"]
    assert (rank["writer"]["pid"], rank["writer"]["is_alive"]) == (trainer.pid, True)
    assert rank["watermarks"]["committed"] == 5
    assert "open" in {row["state"] for row in rank["segments"]}
    records = _records(cli, run)
    assert [r["step"] for r in records if r["is_boundary"]] == [1, 2, 3, 4, 5]
    assert all(r["is_committed"] for r in records), "the record of a step is closed at its boundary"
    assert cli("verify", run).code == cli("verify", run, "--replay").code == 0
    replayed = cli("replay", run, "--out", tmp_path / "state.pt", "--json")
    assert (replayed.code, replayed.json["step"], replayed.json["exact"]) == (0, 5, True)
    assert cli("verify", run, "--repair").code == 2
    assert trainer.finish() == 0
    right, end = train(tmp_path / "right", 10).state_dict(), torch.load(tmp_path / "end.pt", weights_only=True)
    assert all(torch.equal(end[name], right[name]) for name in right)
    assert cli("status", run, "--json").json["ranks"][0]["watermarks"]["committed"] == 10
    assert cli("verify", run, "--replay").code == 0


# replay; tests/torch/offline has what is replayed, and what is in each form of file


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # said of each load in one process
@pytest.mark.parametrize(("form", "step", "checkpoint_step"), [("pt", None, 8), ("safetensors", 7, 4), ("dcp", 3, 0)])
def test_each_format_holds_the_weights_of_the_step(
    cli: Cli, run: Path, tmp_path: Path, form: str, step: int | None, checkpoint_step: int
) -> None:
    out, wanted = tmp_path / "out", STEPS if step is None else step
    options = ["--format", form, *([] if step is None else ["--step", step])]
    if form != "dcp":
        out.write_text("mine")
        options.append("--force")  # else it is not replaced: test_commands.py
    called = cli("replay", run / "rank0", *options, "-o", out, "--json")
    told = called.json
    assert called.code == 0, called.err
    assert (told["step"], told["checkpoint_step"], told["replayed"]) == (wanted, checkpoint_step, wanted - checkpoint_step)
    assert told["exact"] is True
    assert told["bytes"] == sum(path.stat().st_size for path in ([out] if form != "dcp" else out.iterdir()))
    right = train(tmp_path / "right", wanted).state_dict() if wanted else {}
    if form == "pt":
        found = torch.load(out, weights_only=True)["model"]
    elif form == "safetensors":
        found = load_file(out)
    else:
        found = {name: torch.empty_like(tensor) for name, tensor in right.items()}
        dcp.load({"model": found}, checkpoint_id=out, no_dist=True)
    assert all(torch.equal(found[name], right[name]) for name in right)


def test_all_files_have_the_mode_of_new_files(cli: Cli, run: Path, tmp_path: Path) -> None:
    mask = 0o037
    before = os.umask(mask)
    try:
        for name in ("state.pt", "state.safetensors"):
            assert cli("replay", run, "--out", tmp_path / name).code == 0
        assert cli("replay", run, "--format", "dcp", "--out", tmp_path / "dcp").code == 0
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if run not in (path, *path.parents)}
    assert {"state.pt", "state.safetensors", "dcp", ".metadata"} <= modes.keys()
    assert modes == {name: (0o777 if name == "dcp" else 0o666) & ~mask for name in modes}


def test_a_state_that_differs_from_the_run_exits_with_1(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = torch.optim.AdamW.step

    def wrong(self: Any, closure: Any = None) -> Any:
        self.param_groups[0]["params"][0].data.add_(1e-3)
        return right(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", wrong)
    called = cli("replay", run, "--step", 7, "--out", tmp_path / "state.pt", "--json")
    assert called.code == 1
    assert (called.json["exact"], called.json["first_divergent_step"]) == (False, 5)


def test_replay_of_a_log_without_tensors_says_that_there_was_nothing_to_replay(cli: Cli, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model, log="inputs")
    optimizer.recover()
    for _ in optimizer.steps(3, stateless=True):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
    optimizer.close()
    told = " ".join(cli("verify", tmp_path / "run", "--replay").out.split())
    assert "replayed nothing from checkpoint 0: the log has no steps with their tensors behind it" in told
    assert "result the files are intact; there was no step to replay" in told
