from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tranlogs.log.scanner import scan
from tranlogs.log.segment_file import parse_segment_name

from .conftest import STEPS, Cli, flip, segment_files


def _records(cli: Cli, run: Path, *options: object) -> list[dict[str, Any]]:
    called = cli("log", run, "--json", *options)
    assert called.code == 0
    (rank,) = called.json["ranks"]
    return list(rank["records"])


def test_log_lists_every_step_in_order(cli: Cli, run: Path) -> None:
    records = _records(cli, run)
    steps = [record for record in records if record["kind"] == "gradients"]
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert [record["sequence"] for record in records] == list(range(1, len(records) + 1))
    assert {record["optimizer"] for record in steps} == {"main"}
    assert {record["tensors"] for record in steps} == {6}
    assert [record["lr"] for record in steps] == [[0.25, 0.5]] * 4 + [[0.125, 0.25]] * 4 + [[0.0625, 0.125]]
    assert all(record["is_committed"] for record in records)


def test_log_shows_writes_that_no_step_made(cli: Cli, run: Path) -> None:
    images = [record for record in _records(cli, run) if record["kind"] == "image"]
    assert [(record["step"], record["tensors"]) for record in images] == [(5, 1)]


def test_log_shows_what_was_noted_even_where_it_is_no_number(cli: Cli, run: Path) -> None:
    boundaries = [record for record in _records(cli, run) if record["is_boundary"]]
    assert [record["step"] for record in boundaries] == list(range(1, STEPS + 1))
    assert {record["scalars"]["broken"] for record in boundaries} == {"nan"}
    assert all(isinstance(record["scalars"]["loss"], float) for record in boundaries)
    assert "loss=" in cli("log", run).out


@pytest.mark.parametrize(("limit", "first"), [(3, STEPS - 2), (1, STEPS), (100, 1), (0, 1)])
def test_limit_keeps_the_newest_steps(cli: Cli, run: Path, limit: int, first: int) -> None:
    records = _records(cli, run, "--limit", limit)
    assert records == [record for record in _records(cli, run, "-n", 0) if record["step"] >= first]
    assert records[0]["step"] == first


def test_table_has_one_line_a_record(cli: Cli, run: Path) -> None:
    called = cli("log", run)
    lines = [line.split() for line in called.out.splitlines()[3:] if line.strip()]
    kinds = [line[1] for line in lines if line[0].isdigit()]
    assert kinds == ["gradients"] * 5 + ["image"] + ["gradients"] * 4


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_step_shows_the_record_in_full(cli: Cli, run: Path, step: int) -> None:
    record = _records(cli, run, "--step", step)[0]
    assert (record["step"], record["kind"]) == (step, "gradients")
    tensors = {tensor["name"]: tensor for tensor in record["tensors"]}
    weight = tensors["grad/0.weight"]
    assert (weight["dtype"], weight["shape"], weight["bytes"]) == ("float32", [8, 4], 128)
    (piece,) = record["pieces"]  # small tensors share one
    assert piece["bytes"] == sum(tensor["bytes"] for tensor in tensors.values())
    assert piece["codec"] in ("raw", "zero", "high16", "nonzero")
    assert len(piece["checksum"]) == 16
    assert record["body"]["hyper"][1]["betas"] == [0.9, 0.999]
    assert record["body"]["fingerprint"] == "full"


def test_nothing_is_wrapped_where_stdout_is_no_terminal(cli: Cli, run: Path) -> None:
    called = cli("log", run, "--step", 4)
    about = {line.split("  ")[0]: line for line in called.out.splitlines() if line and not line.startswith(" ")}
    boundary = _records(cli, run, "--step", 4)[-1]
    values = re.findall(r"[\w.]+=", about["tracked"])
    assert {f"{name}=" for name in boundary["body"]["tracked"]["scheduler"]} <= set(values)
    assert len(about["tracked"]) > 80
    assert about["scalars"].split()[1].startswith("loss=")
    assert all(line == line.rstrip() for line in called.out.splitlines())


def test_lines_fit_the_columns_that_are_set(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, cli("log", run, "--step", 4).out.splitlines())) <= 60


def test_step_shows_the_auxiliary_state_of_its_boundary(cli: Cli, run: Path) -> None:
    boundary = _records(cli, run, "--step", 4)[-1]
    assert boundary["is_boundary"]
    assert {"tracked", "data", "buffers", "after", "rng"} <= set(boundary["body"])
    assert boundary["body"]["tracked"]["scheduler"]["last_epoch"] == 4
    assert boundary["body"]["buffers"]["1.running_mean"] == {"dtype": "float32", "shape": [8]}


def test_step_in_words(cli: Cli, run: Path) -> None:
    called = cli("log", run, "--step", 2)
    assert called.code == 0
    words = " ".join(called.out.split())
    for word in ("grad/0.weight", "8x4", "hyper-parameters in force", "betas", "fingerprint", "loss="):
        assert word in words


@pytest.mark.parametrize("step", [0, STEPS + 1])
def test_a_step_that_is_not_in_the_log_is_refused(cli: Cli, run: Path, step: int) -> None:
    called = cli("log", run, "--step", step)
    assert called.code == 2
    assert f"the log holds steps 1 to {STEPS}" in called.err


def test_a_record_whose_head_is_damaged_in_its_file_is_shown_by_its_row(cli: Cli, run: Path) -> None:
    whole = _records(cli, run)
    path = segment_files(run)[0]
    named = parse_segment_name(path.name)
    assert named is not None
    for location in scan(path, named[1])[1:]:
        flip(path, location.offset + 30)
    assert _records(cli, run) == whole


def test_a_damaged_record_is_listed_as_damaged(cli: Cli, run: Path) -> None:
    whole = _records(cli, run)
    path = segment_files(run)[0]
    named = parse_segment_name(path.name)
    assert named is not None
    damaged = next(location for location in scan(path, named[1]) if location.head.step == 2)
    flip(path, damaged.description_offset + 30)
    called = cli("log", run, "--json")
    assert called.code == 1
    records = {record["sequence"]: record for record in called.json["ranks"][0]["records"]}
    assert len(records) == len(whole)
    assert records[damaged.head.sequence]["kind"] == "damaged"
    assert f"{path}: step 2: the checksum of its description differs" in called.json["problems"][0]
    assert "damaged" in cli("log", run).out
