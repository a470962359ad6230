"""A run exported for torch.distributed.checkpoint is what get_state_dict and save would have written, bit for bit."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from tests.cli.conftest import Cli, cli
from tests.torch.lab import differences, flatten, in_child
from tests.torch.offline.test_offline import CASES, export
from tranlogs.base.errors import UsageError
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.offline.run import OfflineRun
from tranlogs_torch.tensors import equality

__all__ = ["cli"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:.*Please use DTensor instead"),
]


def read_folder(folder: Path) -> dict[str, Any]:
    """Return what a folder holds, as torch's own converter reads it."""
    dcp_to_torch_save(folder, folder.with_suffix(".pt"))
    found: dict[str, Any] = torch.load(folder.with_suffix(".pt"), weights_only=True)
    return found


def options(*, is_flat: bool) -> StateDictOptions:
    return StateDictOptions(flatten_optimizer_state_dict=is_flat)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["AdamW-foreach", "SparseAdam", "two optimizers", "bfloat16", "groups", "Adafactor"])
def test_plain_load_gets_every_bit_in_both_forms(tmp_path: Path, name: str) -> None:
    model, inner, scheduler = CASES[name].train(tmp_path / "run")
    notes = export(tmp_path / "run", tmp_path / "out", "dcp")
    extra = {"step", "tranlogs"}
    held = {
        key
        for key in FileSystemReader(tmp_path / "out").read_metadata().state_dict_metadata
        if key not in extra and not key.startswith("tracked.")
    }
    wanted: dict[str, Any] = {}
    for is_flat in (False, True):
        weights, state = get_state_dict(model, list(inner.values()), options=options(is_flat=is_flat))
        right, _ = flatten_state_dict({"model": weights, "optimizer": state})
        found = {key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None for key, value in right.items()}
        dcp.load(found, checkpoint_id=tmp_path / "out", no_dist=True)
        assert found.keys() == right.keys()
        assert [key for key in right if not equality._is_same(right[key], found[key])] == []
        wanted |= right
    assert held == wanted.keys()
    tracked = read_folder(tmp_path / "out")["tracked"]["scheduler"]
    assert tracked["last_epoch"] == scheduler.last_epoch
    assert any("its keys become strings" in note for note in notes), "the scheduler's milestones are numbers"


def test_a_fresh_model_is_set_and_what_has_no_state_is_named(tmp_path: Path) -> None:
    case = CASES["AdamW-foreach"]
    right, inner, _ = case.train(tmp_path / "run")
    notes = export(tmp_path / "run", tmp_path / "out", "dcp")
    assert any("no state for frozen, unused" in note and "allow_partial_load" in note for note in notes), notes
    model = case.model()
    optimizer = case.optimizer(model)
    weights, state = get_state_dict(model, optimizer)
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    found = {"model": weights, "optimizer": state}
    dcp.load(found, checkpoint_id=tmp_path / "out", planner=planner, no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    assert all(
        equality.have_same_bits(a, b) for a, b in zip(model.state_dict().values(), right.state_dict().values(), strict=True)
    )
    assert optimizer.param_groups[0]["lr"] == inner["main"].param_groups[0]["lr"]
    theirs = inner["main"].state
    for mine, parameter in zip(model.parameters(), right.parameters(), strict=True):
        for slot, value in theirs.get(parameter, {}).items():
            assert equality.have_same_bits(optimizer.state[mine][slot], value)


def test_several_models_have_a_place_each_in_both_formats(tmp_path: Path) -> None:
    models, extra = {"g": nn.Linear(2, 3), "d": nn.Linear(3, 1)}, nn.Parameter(torch.ones(2))
    first = torch.optim.AdamW([*models["g"].parameters(), extra], lr=0.1)
    second = torch.optim.AdamW(models["d"].parameters(), lr=0.1)
    with LoggedOptimizer(first, tmp_path / "run", models, segment_bytes=1 << 20) as logged:
        logged.add_optimizer(second, "second")
        logged.recover()
        for _ in logged.steps(2):
            (models["d"](models["g"](torch.ones(4, 2))).sum() * extra.sum()).backward()
            first.step(), second.step()
    export(tmp_path / "run", tmp_path / "state.pt")
    content = torch.load(tmp_path / "state.pt", weights_only=True)
    for name, model in models.items():
        assert differences(flatten(content["models"][name]), flatten(dict(model.state_dict()))) == []
    assert [value.tolist() for value in content["parameters"].values()] == [extra.tolist()]
    export(tmp_path / "run", tmp_path / "out", "dcp")
    weights, state = get_state_dict(models["d"], second)
    flat, _ = flatten_state_dict({"models": {"d": weights}, "optimizers": {"second": state}})
    found = {key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None for key, value in flat.items()}
    dcp.load(found, checkpoint_id=tmp_path / "out", no_dist=True)
    assert [key for key in flat if not equality._is_same(flat[key], found[key])] == []


def test_runs_that_dcp_stores_otherwise_or_not(tmp_path: Path) -> None:
    CASES["without model"].train(tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out", "dcp")
    assert set(read_folder(tmp_path / "out")["parameters"]) == {"main.group0.param0", "main.group0.param1"}
    with pytest.raises(UsageError, match="the folder exists and is not replaced"):
        OfflineRun.check_target(tmp_path / "out", "dcp")
    CASES["sparse SGD"].train(tmp_path / "sparse")
    with pytest.raises(UsageError, match=r"optimizer\.state\.embed.weight\.momentum_buffer is a sparse tensor"):
        export(tmp_path / "sparse", tmp_path / "none", "dcp")
    assert not (tmp_path / "none").exists()


def test_bits_decide_and_not_values() -> None:
    zero, nan = torch.zeros(2), torch.full((2,), float("nan"))
    assert equality.have_same_bits(nan, nan.clone())
    assert not equality.have_same_bits(zero, -zero)
    assert not equality.have_same_bits(zero, zero.double())
    assert equality.have_same_bits(torch.ones(2, 3).t(), torch.ones(3, 2))


# As a user moves: a run that died goes on in plain PyTorch, and a script that loads its checkpoint starts another run, which
# dies, too.

LAST = 16


def build() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """Everything anew, from whatever seed."""
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def train(number: int, model: nn.Module, optimizer: Any, scheduler: Any) -> None:
    """One step."""
    optimizer.zero_grad()
    model(torch.randn(5, 4, generator=torch.Generator().manual_seed(number))).square().mean().backward()
    optimizer.step()
    scheduler.step()


def tell(out: Path, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """A digest of every bit."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    for parameter in model.parameters():
        for slot, value in sorted(optimizer.state[parameter].items()):
            digest.update(slot.encode() + value.numpy().tobytes())
    digest.update(repr([optimizer.param_groups[0]["lr"], scheduler.last_epoch]).encode())
    out.write_text(digest.hexdigest())


def logged(run: Path, last: int, kill: int, out: Path, own: Path | None = None) -> None:
    """Under a log; each start loads the script's `own` checkpoint. It dies as step `kill` begins (-1: never)."""
    model, inner, scheduler = build()
    if own is not None:
        content = torch.load(own, weights_only=True)
        model.load_state_dict(content["model"])
        inner.load_state_dict(content["optimizer"])
        scheduler.load_state_dict(content["scheduler"])
    first = scheduler.last_epoch  # steps that were taken before the run began
    optimizer = LoggedOptimizer(inner, run, model, segment_bytes=1 << 20, checkpoint_every=4, durability="process")
    optimizer.track(scheduler=scheduler).recover()
    for number in optimizer.steps(last - first, stateless=True):
        if first + number == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        train(first + number, model, optimizer, scheduler)
    optimizer.close()
    assert optimizer.report.exact is True, optimizer.report
    tell(out, model, inner, scheduler)


def plain(folder: Path, first: int, last: int, out: Path) -> None:
    """Train on from a folder as torch.distributed.checkpoint documents it, without anything of TranLogs; write OUT.pt, too."""
    for name in [name for name in sys.modules if name.startswith("tranlogs")]:
        sys.modules[name] = None  # type: ignore[assignment]  # an import fails
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    model, optimizer, scheduler = build()
    weights, state = get_state_dict(model, optimizer)
    found = {"model": weights, "optimizer": state, "tracked": {"scheduler": scheduler.state_dict()}}
    dcp.load(found, checkpoint_id=str(folder))
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    scheduler.load_state_dict(found["tracked"]["scheduler"])
    assert scheduler.last_epoch == first
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save(content, f"{out}.pt")
    for number in range(first, last):
        train(number, model, optimizer, scheduler)
    tell(out, model, optimizer, scheduler)


@pytest.mark.crash
def test_a_script_that_loads_a_checkpoint_before_recover_starts_a_fresh_run_from_it(cli: Cli, tmp_path: Path) -> None:
    first, second, folder = tmp_path / "first", tmp_path / "second", tmp_path / "folder"
    assert in_child(lambda: logged(first, LAST, 7, tmp_path / "never")) == -signal.SIGKILL
    called = cli("replay", first, "--format", "dcp", "--out", folder, "--json")
    assert (called.code, called.json["step"], called.json["exact"]) == (0, 7, True)
    assert in_child(lambda: plain(folder, 7, LAST, tmp_path / "plain")) == 0

    own = tmp_path / "plain.pt"
    assert in_child(lambda: logged(second, LAST, 13, tmp_path / "never", own)) == -signal.SIGKILL
    assert in_child(lambda: logged(second, LAST, -1, tmp_path / "second.out", own)) == 0
    assert in_child(lambda: logged(first, LAST, -1, tmp_path / "first.out")) == 0
    assert not (tmp_path / "never").exists()
    outcomes = {(tmp_path / name).read_text() for name in ("plain", "first.out", "second.out")}
    assert len(outcomes) == 1
