"""`LoggedOptimizer` in a process that is told to end: the last step is in the store; data loader workers have no part in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.test_signals import sealed
from tests.torch.loops.test_store import same, train
from tranlogs.catalog import Catalog

pytestmark = pytest.mark.crash

_SECONDS_MAX = 200
IN_C = """
import os, signal, sys, torch
from pathlib import Path
from tests.crash.signal_child import sit_in_c
from tests.torch.loops.test_store import train
torch.set_num_threads(1)

def say(optimizer, step):
    if step == 12:
        os.kill(os.getpid(), signal.SIGTERM)
        sit_in_c()

train(Path(sys.argv[1]), sys.argv[2], 40, say)
"""
WORKER = """
import os, sys, signal, torch
from torch.utils.data import DataLoader
from tranlogs_torch import LoggedOptimizer

class Data:
    def __len__(self):
        return 40

    def __getitem__(self, i):
        if i == 20:
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            os.kill(os.getpid(), signal.SIGTERM)
        return torch.randn(4)

model = torch.nn.Linear(4, 2)
loader = DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="fork", prefetch_factor=1)
optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), sys.argv[1], model)
optimizer.track(loader=loader).recover()
for batch in optimizer.batches(loader, until=10):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run_child(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS_MAX,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_what_was_sealed_at_the_signal_is_shipped_before_the_process_ends(tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    store.mkdir()
    found = run_child(IN_C, run, store)
    assert found.returncode == -signal.SIGTERM, found.stderr
    catalog = Catalog.open(run / "rank0")
    marks = catalog.watermarks()
    catalog.close()
    assert marks.committed >= 11
    assert (marks.synced, marks.archived) == (marks.committed, marks.committed)
    shutil.rmtree(run)  # with the machine
    landed: list[int] = []
    again = train(run, str(store), 15, lambda optimizer, step: landed.append(step - 1))
    assert landed[0] == marks.committed
    assert same(again, train(tmp_path / "other", None, 15))


def test_a_worker_s_death_is_an_exception_and_the_log_is_sealed(tmp_path: Path) -> None:
    found = run_child(WORKER, tmp_path / "run")
    assert found.returncode == 1
    assert "killed by signal: Terminated" in found.stderr
    assert "SIGTERM: steps" not in found.stderr
    assert 0 < sealed(tmp_path / "run") < 10
