"""`tranlogs export`; tests/torch/offline/test_export_dcp.py has what is in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from .conftest import STEPS, Cli, train


@pytest.mark.parametrize("form", ["pt", "safetensors", "dcp"])
def test_each_format_holds_the_weights_of_the_step(cli: Cli, run: Path, tmp_path: Path, form: str) -> None:
    right = train(tmp_path / "right", 3).state_dict()
    called = cli("export", run, "--to", form, tmp_path / "out", "--step", 3, "--json")
    assert (called.code, called.json["step"], called.json["exact"]) == (0, 3, True), called.err
    size = (tmp_path / "out").stat().st_size if form != "dcp" else sum(p.stat().st_size for p in (tmp_path / "out").iterdir())
    assert called.json["bytes"] == size
    if form == "pt":
        found = torch.load(tmp_path / "out", weights_only=True)["model"]
        assert all(torch.equal(found[name], right[name]) for name in right)
    if form == "dcp":
        held = FileSystemReader(tmp_path / "out").read_metadata().state_dict_metadata
        assert {name for name in held if name.startswith("model.")} == {f"model.{name}" for name in right}


@pytest.mark.parametrize("form", ["pt", "dcp"])
def test_what_is_there_is_not_replaced(cli: Cli, run: Path, tmp_path: Path, form: str) -> None:
    (tmp_path / "out").write_text("mine")
    called = cli("export", run, "--to", form, tmp_path / "out")
    assert called.code == 2
    assert "out exists already: delete it, or use another name" in called.err
    assert (tmp_path / "out").read_text() == "mine"


def test_formats_are_named(cli: Cli, run: Path, tmp_path: Path) -> None:
    called = cli("export", run, "--to", "onnx", tmp_path / "out")
    assert called.code == 2
    assert "can be written as dcp, pt, safetensors" in called.err
    assert cli("export", run, tmp_path / "out").code == 2
    assert cli("export", run, "--to", "dcp", tmp_path / "no" / "out").code == 2


def test_an_uncovered_step_writes_nothing(cli: Cli, run: Path, tmp_path: Path) -> None:
    called = cli("export", run, "--to", "dcp", tmp_path / "out", "--step", STEPS + 5)
    assert (called.code, (tmp_path / "out").exists()) == (1, False)
    assert f"the nearest is {STEPS}" in called.err


def test_it_tells_in_words(cli: Cli, run: Path, tmp_path: Path) -> None:
    called = cli("export", run, "--to", "dcp", tmp_path / "out")
    words = " ".join(called.out.split())
    assert f"step {STEPS} (batch {STEPS}, epoch 1, timeline 1)" in words
    assert "all redone steps equal the run's" in words
