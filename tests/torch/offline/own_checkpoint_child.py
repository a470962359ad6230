"""A small model that is trained under a log, or in a process of its own that knows nothing of TranLogs.

own_checkpoint_child.py FOLDER FIRST LAST OUT     from a folder of torch.distributed.checkpoint; writes OUT.pt, too
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn


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


def tell(out: str, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """A digest of every bit."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    for parameter in model.parameters():
        for slot, value in sorted(optimizer.state[parameter].items()):
            digest.update(slot.encode() + value.numpy().tobytes())
    digest.update(repr([optimizer.param_groups[0]["lr"], scheduler.last_epoch]).encode())
    Path(out).write_text(digest.hexdigest())


def logged(run: Path, last: int, kill: int, out: Path, own: Path | None = None) -> None:
    """Under a log; each start loads the script's `own` checkpoint. It dies as step `kill` begins (-1: never)."""
    from tranlogs_torch import LoggedOptimizer

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
    tell(str(out), model, inner, scheduler)


def plain(folder: str, first: int, last: int, out: str) -> None:
    """As the documentation of torch.distributed.checkpoint has it."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    model, optimizer, scheduler = build()
    weights, state = get_state_dict(model, optimizer)
    found = {"model": weights, "optimizer": state, "tracked": {"scheduler": scheduler.state_dict()}}
    dcp.load(found, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    scheduler.load_state_dict(found["tracked"]["scheduler"])
    assert scheduler.last_epoch == first
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    torch.save(content, f"{out}.pt")
    for number in range(first, last):
        train(number, model, optimizer, scheduler)
    assert not [name for name in sys.modules if name.startswith("tranlogs")]
    tell(out, model, optimizer, scheduler)


if __name__ == "__main__":
    where, a, b, target = sys.argv[1:]
    plain(where, int(a), int(b), target)
