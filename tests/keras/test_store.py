"""`TranLogsCallback(store=...)`: a fit that was killed and whose disk is gone goes on from the store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.monitor.test_beside import is_running, wait_until
from tranlogs.journal import read_owner


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    """A store that is not there is none that is empty."""
    (tmp_path / "store").mkdir()


def test_a_fit_whose_disk_is_lost_goes_on_from_the_store(torch: Lab, tmp_path: Path) -> None:
    run, options = tmp_path / "run", {"store": str(tmp_path / "store"), "monitor": [None, None, "0.1s"]}
    assert torch.run("fit", run=str(run), die=["batch", 13], options=options).was_killed
    wait_until(lambda: read_owner(run / "rank0", "monitor") is not None, "the monitor")
    monitor = read_owner(run / "rank0", "monitor")
    assert monitor is not None
    wait_until(lambda: not is_running(monitor.pid), "the monitor's end, when it has shipped what was left")
    shutil.rmtree(run)
    whole = torch.value("fit", run=str(run), options={"store": str(tmp_path / "store")})
    assert whole["report"]["exact"] is True
    assert whole["report"]["step"] >= 12
    assert whole["state"] == torch.twin("fit")["state"]


def test_what_is_damaged_here_comes_from_the_store(torch: Lab, tmp_path: Path) -> None:
    run, options = tmp_path / "run", {"store": str(tmp_path / "store")}
    assert torch.value("fit", run=str(run), epochs=1, options=options)["report"]["step"] == 0
    for path in [*(run / "rank0/checkpoints").glob("*/state.safetensors"), *(run / "rank0/log").glob("*.seg")]:
        path.write_bytes(path.read_bytes()[:100])
    whole = torch.value("fit", run=str(run), epochs=2, options=options)
    assert (whole["report"]["exact"], whole["report"]["step"]) == (True, 10)
    assert whole["state"] == torch.twin("fit", epochs=2)["state"]
