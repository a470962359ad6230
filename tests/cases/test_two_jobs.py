"""A cleaner of old files deletes the lock of a live run: its writer notices, and a second job is refused."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.cli.conftest import Cli, cli
from tests.kills.job import Start
from tests.kills.launchers import PYTORCH, forked, in_child, wait_for
from tests.kills.pytorch import Job, Life, finished
from tests.torch.nets import seed
from tranlogs.base.errors import RunInUse

__all__ = ["cli"]

SECONDS_MAX = 60.0


def patient(job: Job, *, pauses: bool = False) -> None:
    """Train; before batches 8 and 16 it may wait until a file is there."""
    seed()
    x = torch.randn(40, 4)
    model = nn.Linear(4, 1)
    loader = DataLoader(TensorDataset(x), batch_size=8, shuffle=True)
    optimizer = job.wrap(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    job.start(optimizer, loader=loader)
    for number, (rows,) in optimizer.batches(loader, until=24, enumerate=True):
        if pauses and number in (8, 16):
            (job.folder / f"before {number}").touch()
            wait_until_there(job.folder / f"go on {number}")
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
    job.keep(model=model, optimizer=optimizer)
    optimizer.close()


def wait_until_there(path: Path) -> None:
    """Wait for a file that another process makes."""
    end = time.monotonic() + SECONDS_MAX
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.005)


def tell_refusal(start: Start, said: Path) -> None:
    """Live, and write down why a life is refused."""
    try:
        start.live()
    except RunInUse as error:
        said.write_text(str(error))
        raise


@pytest.mark.crash
def test_a_second_job_is_refused_though_the_lock_file_was_deleted(cli: Cli, tmp_path: Path) -> None:
    run, first = tmp_path / "run", tmp_path / "first"
    begin = Start(PYTORCH.job, partial(patient, pauses=True), first, run, None, {"durability": "machine"}, {})
    pid = forked(begin.live)
    wait_until_there(first / "before 8")
    for name in ("owner.lock", "owner.json"):
        (run / "rank0" / name).unlink()
    (first / "go on 8").touch()
    wait_until_there(first / "before 16")
    second = Start(PYTORCH.job, patient, tmp_path / "second", run, None, {"durability": "machine"}, {})
    refused = in_child(partial(tell_refusal, second, tmp_path / "said"))
    status = cli("status", run)
    (first / "go on 16").touch()
    assert wait_for(pid) == 0, "who trained goes on"
    assert refused == 1
    assert f"process {pid}" in (tmp_path / "said").read_text(), "the error names who writes"
    assert f"{pid}" in status.out
    assert not Life.read(first).differences(finished(patient, tmp_path / "twin"))
