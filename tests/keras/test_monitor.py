"""`TranLogsCallback(monitor=...)`: a process that outlives a fit that was killed."""

from __future__ import annotations

from pathlib import Path

from tests.keras.lab import Lab
from tests.monitor.test_beside import is_running, wait_until
from tranlogs.catalog import Catalog
from tranlogs.journal import read_owner


def test_a_fit_that_is_killed_and_run_again(torch: Lab, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = {"monitor": ["1GiB", None, "0.1s"]}
    assert torch.run("fit", run=str(run), die=["batch", 13], options=options).was_killed
    wait_until(lambda: (found := read_owner(run / "rank0", "monitor")) is not None and found.is_alive, "the monitor")
    whole = torch.value("fit", run=str(run), options=options)
    assert whole["report"]["exact"] is True
    assert whole["state"] == torch.twin("fit")["state"]
    monitor = read_owner(run / "rank0", "monitor")
    assert monitor is not None
    wait_until(lambda: not is_running(monitor.pid), "the monitor's end")
    catalog = Catalog.open(run / "rank0")
    assert {row.state for row in catalog.segments()} <= {"sealed", "retired"}
    catalog.close()
