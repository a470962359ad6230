"""As a user moves: a run that died goes on in plain PyTorch, and a script that loads its checkpoint starts another run, which
dies, too.
"""

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
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tests.cli.conftest import Cli, cli
from tests.torch.lab import in_child
from tranlogs_torch import LoggedOptimizer

__all__ = ["cli"]

LAST = 16

pytestmark = pytest.mark.crash


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
