"""A run takes the disk space that its start line names, and gives back at its end what was only kept for recycling."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from tranlogs.base.quantities import BYTES
from tranlogs.recovery.journal_facts import read_catalog
from tranlogs_torch import LoggedOptimizer


def disk_bytes(run: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in run.rglob("*") if path.is_file())


def test_a_small_run_takes_what_its_start_line_says_and_gives_spare_files_back(tmp_path: Path) -> None:
    model = nn.Linear(256, 256, bias=False)  # 0.25 MiB
    run = tmp_path / "run"
    optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters()), run, model, durability="process")
    said = re.search(r"; at most about ([\d.]+) (MiB) on disk without crashes\)$", str(optimizer.recover()))
    assert said is not None
    limit, taken = float(said[1]) * BYTES[said[2].lower()], []
    for number in optimizer.steps(until=220, stateless=True):
        model(torch.randn(1, 256)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 10 == 9:
            optimizer.training_run.journal.wait_checkpoint()
            taken.append(disk_bytes(run))
    assert max(taken) <= limit
    assert any(row.state == "retired" for row in read_catalog(run / "rank0").segments), "nothing is there to be given back"
    optimizer.close()
    rows = read_catalog(run / "rank0").segments
    assert {row.state for row in rows} == {"sealed"}
    assert {path.name for path in (run / "rank0" / "log").glob("*.seg")} == {row.file for row in rows}
    assert disk_bytes(run) < taken[-1] * 0.8
