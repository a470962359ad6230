"""`LoggedOptimizer(store=...)`: the run is in the store when it is closed, and comes from there when it is not here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.lab import in_child
from tranlogs.base.errors import CorruptObject, StoreRefused, StoreUnavailable
from tranlogs.catalog import Catalog
from tranlogs.shipping import in_process_shipping
from tranlogs.stores import ObjectStatus, local
from tranlogs_torch import LoggedOptimizer


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
        in_process_shipping.LAG_SECONDS = 0.05
        train(run, store, until, say, **options)

    return in_child(work)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    """A store that is not there is none that is empty."""
    (tmp_path / "store").mkdir()


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values()))


def test_a_closed_run_is_in_the_store_and_comes_back_by_itself(tmp_path: Path) -> None:
    run, store = tmp_path / "run", str(tmp_path / "store")
    train(run, store, 10)
    catalog = Catalog.open(run / "rank0")
    marks = catalog.watermarks()
    catalog.close()
    assert (marks.archived, marks.persisted) == (10, 10)
    shutil.rmtree(run)
    assert same(train(run, store, 15), train(tmp_path / "other", None, 15))


def test_a_script_that_ends_without_closing_its_run_ships_all_of_it(tmp_path: Path) -> None:
    """At the exit of the interpreter an executor takes no more work; what is sealed last is sent then."""
    script = (
        "import sys, torch\n"
        "from tranlogs_torch import LoggedOptimizer\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = LoggedOptimizer(torch.optim.SGD(model.parameters(), 0.1), sys.argv[1], model, store=sys.argv[2])\n"
        "optimizer.recover()\n"
        "for _ in optimizer.steps(5):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "run", tmp_path / "store"], check=True)
    catalog = Catalog.open(tmp_path / "run/rank0")
    marks = catalog.watermarks()
    catalog.close()
    assert (marks.archived, marks.persisted) == (5, 5)


def test_the_end_waits_until_the_store_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object is so when it is asked for the third time."""
    asked = Counter[str]()
    stat = local.LocalStore.stat

    def durable_later(self: local.LocalStore, name: str) -> ObjectStatus | None:
        asked[name] += 1
        found = stat(self, name)
        return found and replace(found, is_durable=asked[name] > 2)

    monkeypatch.setattr(local.LocalStore, "stat", durable_later)
    train(tmp_path / "run", str(tmp_path / "store"), 10)
    catalog = Catalog.open(tmp_path / "run/rank0")
    assert catalog.watermarks().persisted == 10
    catalog.close()


def test_the_end_does_not_wait_for_ever_for_a_store_that_makes_nothing_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stat = local.LocalStore.stat

    def never_durable(self: local.LocalStore, name: str) -> ObjectStatus | None:
        found = stat(self, name)
        return found and replace(found, is_durable=False)

    monkeypatch.setattr(local.LocalStore, "stat", never_durable)
    monkeypatch.setattr(in_process_shipping, "_DURABLE_SECONDS", 0.3)
    train(tmp_path / "run", str(tmp_path / "store"), 10)
    assert "steps after 0 are in the store" in caplog.text
    assert "but not durable yet" in caplog.text
    catalog = Catalog.open(tmp_path / "run/rank0")
    assert (catalog.watermarks().archived, catalog.watermarks().persisted) == (10, 0)
    catalog.close()


def test_a_trainer_that_is_killed_and_whose_disk_is_lost_goes_on_from_the_store(tmp_path: Path) -> None:
    run, store = tmp_path / "run", str(tmp_path / "store")
    assert train_in_child(run, store, 40, die_at=20) == -signal.SIGKILL
    shutil.rmtree(run)
    landed: list[int] = []
    found = train(run, store, 25, lambda optimizer, step: landed.append(step))
    assert 17 <= landed[0] - 1 <= 20, "the store was hardly behind"
    assert same(found, train(tmp_path / "other", None, 25))


def test_what_is_damaged_here_comes_from_the_store(tmp_path: Path) -> None:
    run, store = tmp_path / "run", str(tmp_path / "store")
    train(run, store, 10)
    harmed = [*(run / "rank0/checkpoints").glob("*/state.safetensors"), *(run / "rank0/log").glob("*.seg")]
    for path in harmed:
        path.write_bytes(path.read_bytes()[:100])
    landed: list[int] = []
    found = train(run, store, 15, lambda optimizer, step: landed.append(step))
    assert landed[0] == 11
    assert same(found, train(tmp_path / "other", None, 15))


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


def test_a_run_does_not_begin_below_the_place_of_a_disk_that_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="mount its disk, or create the folder"):
        train(tmp_path / "run", str(tmp_path / "disk/store"), 3)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "disk").exists()


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
    monkeypatch.setattr(in_process_shipping, "STALL_SECONDS", 0.5)

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


def test_a_monitor_ships_where_there_is_one(tmp_path: Path) -> None:
    run, store = tmp_path / "run", str(tmp_path / "store")
    assert train_in_child(run, store, 9, monitor="process") == 0
    for _ in range(600):
        catalog = Catalog.open(run / "rank0")
        persisted = catalog.watermarks().persisted
        catalog.close()
        if persisted == 9:
            break
        signal.sigtimedwait([], 0.1)
    assert persisted == 9
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    assert same(train(tmp_path / "new/run", str(tmp_path / "copy"), 12), train(tmp_path / "other", None, 12))


def test_a_wrong_address_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="nothing://"):
        train(tmp_path / "run", "nothing://there", 3)
    assert not (tmp_path / "run").exists()
