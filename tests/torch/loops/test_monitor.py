"""`LoggedOptimizer(monitor=...)`: a process that outlives a trainer that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.monitor.test_beside import ROOT, evaluations, is_running, is_watched, wait_until
from tranlogs.base.errors import UsageError
from tranlogs.catalog import Catalog
from tranlogs.journal import read_owner
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.loops.recovery import recovery

SCRIPT = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tranlogs import Monitor
from tranlogs_torch import LoggedOptimizer
if __name__ == "__main__":
    model = nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4, num_workers=1, multiprocessing_context="fork")
    optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), sys.argv[1], model,
                                monitor=Monitor("1GiB", interval="0.05s"))
    optimizer.track(loader=loader)
    optimizer.recover()
    for batch, in optimizer.batches(loader, until=10**9):
        model(batch).square().mean().backward()
        optimizer.step(); optimizer.zero_grad()
        print(optimizer.training_run.journal.step, flush=True); sys.stdin.readline()
"""


def test_a_process_seals_what_a_killed_trainer_left_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, (ROOT, ROOT / "integrations", ROOT / "monitor"))))
    run, script, pipe = tmp_path / "run", tmp_path / "train.py", subprocess.PIPE
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, str(script), str(run)], stdin=pipe, stdout=pipe, text=True) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        for line in trainer.stdout:
            if line.strip() == "5":
                break
            trainer.stdin.write("\n")
            trainer.stdin.flush()
        wait_until(lambda: evaluations(run / "rank0"), "an evaluation")
        monitor = read_owner(run / "rank0", "monitor")
        assert monitor is not None
        os.kill(trainer.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(monitor.pid), "the monitor's end")
    assert not is_watched(run / "rank0")
    catalog = Catalog.open(run / "rank0")
    rows = catalog.segments()
    catalog.close()
    assert [row.last_step for row in rows if row.state == "sealed"][-1] in (4, 5)
    assert {row.state for row in rows} <= {"sealed", "retired"}
    log = (run / "rank0/monitor.log").read_text()
    assert f"process {trainer.pid} on" in log
    assert "of its log" in log


def test_a_recovery_to_a_step_holds_monitors_off_until_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(optimizer: LoggedOptimizer) -> bool:
        return optimizer.training_run.journal.catalog.read(lambda tables: tables.request("hold")) is not None

    def train(optimizer: LoggedOptimizer, model: nn.Module, until: int) -> None:
        for _ in optimizer.steps(until):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()

    def open_run() -> tuple[LoggedOptimizer, nn.Module]:
        model = nn.Linear(4, 4)
        return LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run", model), model

    optimizer, model = open_run()
    optimizer.recover()
    train(optimizer, model, 6)
    optimizer.close()
    optimizer, model = open_run()
    seen, real = [], recovery.recover
    monkeypatch.setattr(
        recovery, "recover", lambda *given, **options: (seen.append(held(optimizer)), real(*given, **options))[1]
    )
    assert optimizer.recover(step=3).step == 3
    assert (seen, held(optimizer)) == ([True], True)
    train(optimizer, model, 5)
    assert not held(optimizer)
    optimizer.close()


def test_wrong_settings_are_refused_before_the_run_is_made(tmp_path: Path) -> None:
    inner = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(UsageError, match="needs a monitor"):
        LoggedOptimizer(inner, tmp_path / "run", budget="1GiB")
    assert not (tmp_path / "run").exists()


def test_a_budget_below_one_log_file_is_refused_with_one_that_will_do(tmp_path: Path) -> None:
    def logged(budget: str) -> LoggedOptimizer:
        inner = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        return LoggedOptimizer(inner, tmp_path / "run", monitor="process", budget=budget, segment_bytes=2 << 20)

    with pytest.raises(UsageError, match=r"run: a budget of 1\.9 MiB .* less than one log file .*2\.0 MiB.* at least 6\.0 MiB"):
        logged("2MB")
    assert not (tmp_path / "run").exists()
    logged("6MiB").close()
