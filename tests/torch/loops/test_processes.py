"""`LoggedOptimizer` among processes: a store, a monitor that outlives its trainer, signals, workers of a loader."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.crash.test_signals import sealed
from tests.kills.launchers import run_script
from tests.monitor.monitors import is_running, is_watched
from tests.support.launcher import ROOT
from tests.support.waiting import wait_until
from tests.torch.lab import in_child
from tranlogs.base.errors import CorruptObject, StoreUnavailable, UsageError
from tranlogs.catalog import Catalog
from tranlogs.catalog.rows import Watermarks
from tranlogs.shipping import archiver as shipping_archiver
from tranlogs.stores import ObjectStatus, local
from tranlogs_torch import LoggedOptimizer
from tranlogs_torch.loops import recovery

pytestmark = pytest.mark.crash


def train(run: Path, store: str | None, until: int, say=lambda optimizer, step: None, **options: object) -> torch.nn.Module:  # type: ignore[no-untyped-def]
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2))
    inner = torch.optim.Adam(model.parameters(), lr=0.01)
    with LoggedOptimizer(inner, run, model, checkpoint_every=7, store=store, **options) as optimizer:  # type: ignore[arg-type]
        optimizer.recover()
        for _ in optimizer.steps(until):
            optimizer.zero_grad()
            model(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
            say(optimizer, optimizer.training_run.journal.step)
    return model


def train_in_child(run: Path, store: str, until: int, *, die_at: int = 0, **options: object) -> int:
    """Train in a process of its own, which dies by SIGKILL at a step once the store is near it; return its exit status."""

    def say(optimizer: LoggedOptimizer, step: int) -> None:
        if step == die_at:
            archiver: Any = optimizer.training_run._resources._shipping._archiver  # type: ignore[union-attr]
            while archiver.progress().archived < step - 3:
                archiver.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        shipping_archiver.LAG_SECONDS = 0.05
        train(run, store, until, say, **options)

    return in_child(work)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    """A store that is not there is none that is empty."""
    (tmp_path / "store").mkdir()


def watermarks(run: Path) -> Watermarks:
    catalog = Catalog.open(run / "rank0")
    found = catalog.watermarks()
    catalog.close()
    return found


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values()))


def test_the_end_does_not_wait_for_ever_for_a_store_that_makes_nothing_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stat = local.LocalStore.stat

    def never_durable(self: local.LocalStore, name: str) -> ObjectStatus | None:
        found = stat(self, name)
        return found and replace(found, is_durable=False)

    monkeypatch.setattr(local.LocalStore, "stat", never_durable)
    monkeypatch.setattr(shipping_archiver, "_DURABLE_SECONDS", 0.3)
    train(tmp_path / "run", str(tmp_path / "store"), 10)
    assert "steps after 0 are in the store" in caplog.text
    assert "but not durable yet" in caplog.text
    marks = watermarks(tmp_path / "run")
    assert (marks.archived, marks.persisted) == (10, 0)


def test_a_trainer_that_is_killed_and_whose_disk_is_lost_goes_on_from_the_store(tmp_path: Path) -> None:
    run, store = tmp_path / "run", str(tmp_path / "store")
    assert train_in_child(run, store, 40, die_at=20) == -signal.SIGKILL
    shutil.rmtree(run)
    landed: list[int] = []
    found = train(run, store, 25, lambda optimizer, step: landed.append(step))
    assert 16 <= landed[0] - 1 <= 19, "the store was hardly behind, and the newest unit is computed again"
    assert same(found, train(tmp_path / "other", None, 25))


def test_a_run_does_not_begin_anew_because_its_store_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, store = tmp_path / "run", str(tmp_path / "store")
    train(run, store, 4)

    def fail(*_: object) -> None:
        raise StoreUnavailable(store, "it is away")

    monkeypatch.setattr(local.LocalStore, "names", fail)
    with pytest.raises(StoreUnavailable, match=r"it is away.*nothing was started") as raised:
        train(tmp_path / "elsewhere/run", store, 6)
    assert raised.value.__suppress_context__
    assert not (tmp_path / "elsewhere/run").exists()


def test_a_run_does_not_begin_anew_because_its_manifests_are_damaged(tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    train(run, str(store), 4)
    for path in store.glob("run/rank0/manifests/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    shutil.rmtree(run)
    with pytest.raises(CorruptObject, match="none of its manifests can be read"):
        train(run, str(store), 6)
    assert not run.exists()


def test_a_store_that_is_away_holds_up_no_run_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, store = tmp_path / "run", str(tmp_path / "store")
    train(run, store, 4)
    monkeypatch.setattr(shipping_archiver, "STALL_SECONDS", 0.5)

    def fail(*_: object) -> None:
        raise StoreUnavailable(store, "it is away")

    monkeypatch.setattr(local.LocalStore, "names", fail)
    train(run, store, 9)
    assert "it is away" in caplog.text
    assert "steps after 4 may be missing from the store" in caplog.text
    assert "run `tranlogs push` to ship them" in caplog.text
    monkeypatch.undo()
    train(run, store, 9)
    shutil.rmtree(run)
    assert same(train(run, store, 12), train(tmp_path / "other", None, 12))


# Signals

IN_C = """
import os, signal, sys, torch
from pathlib import Path
from tests.crash.signal_child import sit_in_c
from tests.torch.loops.test_processes import train

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


def test_what_was_sealed_at_the_signal_is_shipped_before_the_process_ends(tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    found = run_script(IN_C, tmp_path, run, store)
    assert found.returncode == -signal.SIGTERM, found.stderr
    marks = watermarks(tmp_path / "run")
    assert marks.committed >= 11
    assert (marks.synced, marks.archived) == (marks.committed, marks.committed)
    shutil.rmtree(run)  # with the machine
    landed: list[int] = []
    again = train(run, str(store), 15, lambda optimizer, step: landed.append(step - 1))
    assert landed[0] == marks.committed - 1, "and the newest unit is computed again"
    assert same(again, train(tmp_path / "other", None, 15))


def test_a_worker_s_death_is_an_exception_and_the_log_is_sealed(tmp_path: Path) -> None:
    found = run_script(WORKER, tmp_path, tmp_path / "run")
    assert found.returncode == 1
    assert "killed by signal: Terminated" in found.stderr
    assert "SIGTERM: steps" not in found.stderr
    assert 0 < sealed(tmp_path / "run") < 10


# A monitor

SCRIPT = """
import os, signal, sys, time, torch
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tests.monitor.monitors import evaluations
from tests.support.waiting import wait_until
from tranlogs import Monitor
from tranlogs.journal import read_owner
from tranlogs_torch import LoggedOptimizer
run = Path(sys.argv[1])
model = nn.Linear(4, 2)
loader = DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4, num_workers=1, multiprocessing_context="fork")
optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), run, model, monitor=Monitor("1GiB", interval="0.05s"))
optimizer.track(loader=loader)
optimizer.recover()
for batch, in optimizer.batches(loader, until=10**9):
    model(batch).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
    if optimizer.training_run.journal.step == 5:
        wait_until(lambda: evaluations(run / "rank0"), "an evaluation")
        print(os.getpid(), read_owner(run / "rank0", "monitor").pid)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_seals_what_a_killed_trainer_left_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, (ROOT, ROOT / "integrations", ROOT / "monitor"))))
    run = tmp_path / "run"
    ended = run_script(SCRIPT, tmp_path, run)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    trainer, monitor = map(int, ended.stdout.split()[-2:])
    wait_until(lambda: not is_running(monitor), "the monitor's end")
    assert not is_watched(run / "rank0")
    catalog = Catalog.open(run / "rank0")
    rows = catalog.segments()
    catalog.close()
    assert [row.last_step for row in rows if row.state == "sealed"][-1] in (4, 5)
    assert {row.state for row in rows} <= {"sealed", "retired"}
    log = (run / "rank0/monitor.log").read_text()
    assert f"process {trainer} on" in log
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


def test_a_budget_below_one_log_file_is_refused_with_one_that_will_do(tmp_path: Path) -> None:
    def logged(budget: str) -> LoggedOptimizer:
        inner = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        return LoggedOptimizer(inner, tmp_path / "run", monitor="process", budget=budget, segment_bytes=2 << 20)

    with pytest.raises(UsageError, match=r"run: a budget of 1\.9 MiB .* less than one log file .*2\.0 MiB.* at least 6\.0 MiB"):
        logged("2MB")
    assert not (tmp_path / "run").exists()
    logged("6MiB").close()
