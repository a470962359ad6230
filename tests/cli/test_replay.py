"""Offline replay by the command line; tests/torch/offline/test_offline.py has what is replayed."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from .conftest import STEPS, Cli, train


def test_replay_writes_the_newest_state(cli: Cli, run: Path, tmp_path: Path) -> None:
    called = cli("replay", run, "--out", tmp_path / "state.pt", "--json")
    assert called.code == 0
    told = called.json
    assert (told["step"], told["checkpoint_step"], told["replayed"], told["exact"]) == (STEPS, 8, 1, True)
    assert told["bytes"] == (tmp_path / "state.pt").stat().st_size
    model = torch.load(tmp_path / "state.pt", weights_only=True)["model"]
    right = train(tmp_path / "right").state_dict()
    assert list(model) == list(right)
    assert all(torch.equal(model[name], right[name]) for name in right)


@pytest.mark.parametrize("step", [0, 4, 7])
def test_replay_to_a_step(cli: Cli, run: Path, tmp_path: Path, step: int) -> None:
    assert cli("replay", run / "rank0", "--step", step, "-o", tmp_path / "state.pt").code == 0
    content = torch.load(tmp_path / "state.pt", weights_only=True)
    assert content["step"] == step
    if step:
        right = train(tmp_path / "right", step).state_dict()
        assert all(torch.equal(content["model"][name], right[name]) for name in right)


def test_an_uncovered_step_is_refused_before_the_framework_is_imported(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tranlogs.frameworks.entry_points", lambda **_: pytest.fail("the framework is looked for"))
    called = cli("replay", run, "--step", STEPS + 5, "--out", tmp_path / "state.pt")
    assert called.code == 1
    assert f"step {STEPS + 5} is not covered" in called.err
    assert f"the nearest is {STEPS}" in called.err


@pytest.mark.parametrize("name", ["state.pt", "state.safetensors"])
def test_a_file_is_replaced_only_by_force(cli: Cli, run: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    target.write_text("mine")
    called = cli("replay", run, "--out", target)
    assert called.code == 2
    assert f"{target} exists already" in called.err
    assert "--force" in called.err
    assert target.read_text() == "mine"
    assert cli("replay", run, "--out", target, "--force", "--json").json["bytes"] == target.stat().st_size > 4


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


def test_a_framework_that_cannot_be_imported_is_named_too(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = importlib.metadata.EntryPoint("torch", "no_such_module:OfflineRun", "tranlogs.frameworks")
    monkeypatch.setattr("tranlogs.frameworks.entry_points", lambda **_: [broken])
    called = cli("replay", run, "--out", tmp_path / "state.pt")
    assert called.code == 2
    assert "pip install 'tranlogs[torch]'" in called.err
    assert "no_such_module" in called.err


def test_a_class_of_the_users_own_is_found_in_the_working_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tranlogs_torch import LoggedOptimizer

    (tmp_path / "my_optimizers.py").write_text("import torch\nclass Mine(torch.optim.SGD):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    made: Any = importlib.import_module("my_optimizers")
    parameter = torch.nn.Parameter(torch.ones(2))
    with LoggedOptimizer(made.Mine([parameter], lr=0.1), tmp_path / "run", segment_bytes=1 << 20) as optimizer:
        optimizer.recover()
        for _ in optimizer.steps(2):
            parameter.grad = torch.ones(2)
            optimizer.step()
    called = cli("replay", "run", "--out", "state.pt")
    assert called.code == 2
    assert "--optimizer my_optimizers:Mine" in called.err
    assert cli("replay", "run", "--out", "state.pt", "--optimizer", "my_optimizers:Mine").code == 0


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


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # said of each load in one process
@pytest.mark.parametrize("form", ["pt", "safetensors", "dcp"])
def test_each_format_holds_the_weights_of_the_step(cli: Cli, run: Path, tmp_path: Path, form: str) -> None:
    """tests/torch/offline/test_export_dcp.py has what is in a folder of torch.distributed.checkpoint."""
    right, out = train(tmp_path / "right", 3).state_dict(), tmp_path / "out"
    called = cli("replay", run, "--format", form, "--out", out, "--step", 3, "--json")
    assert (called.code, called.json["step"], called.json["exact"]) == (0, 3, True), called.err
    assert called.json["bytes"] == sum(path.stat().st_size for path in ([out] if form != "dcp" else out.iterdir()))
    if form == "pt":
        found = torch.load(out, weights_only=True)["model"]
    elif form == "safetensors":
        found = load_file(out)
    else:
        found = {name: torch.empty_like(tensor) for name, tensor in right.items()}
        dcp.load({"model": found}, checkpoint_id=out, no_dist=True)
    assert all(torch.equal(found[name], right[name]) for name in right)
