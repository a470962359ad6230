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


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # said of each load in one process
@pytest.mark.parametrize(
    ("form", "step", "checkpoint_step"), [("pt", None, 8), ("pt", 0, 0), ("pt", 4, 4), ("safetensors", 7, 4), ("dcp", 3, 0)]
)
def test_each_format_holds_the_weights_of_the_step(
    cli: Cli, run: Path, tmp_path: Path, form: str, step: int | None, checkpoint_step: int
) -> None:
    """tests/torch/offline/test_export_dcp.py has what is in a folder of torch.distributed.checkpoint."""
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


def test_an_uncovered_step_is_refused_before_the_framework_is_imported(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tranlogs.frameworks.entry_points", lambda **_: pytest.fail("the framework is looked for"))
    called = cli("replay", run, "--step", STEPS + 5, "--out", tmp_path / "state.pt")
    assert called.code == 1
    assert f"step {STEPS + 5} is not covered" in called.err
    assert f"the nearest is {STEPS}" in called.err


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
