"""A fit that is told to end by SIGTERM seals and syncs its log, whatever it is at, and goes on at the batch."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.crash.test_signals import sealed
from tests.keras.lab import Lab


def test_sigterm_ends_a_fit_with_its_log_sealed(torch: Lab, tmp_path: Path) -> None:
    run, options = tmp_path / "run", {"durability": "machine"}
    ended = torch.run("fit", run=str(run), model="dense", die=["batch", 13], is_told=True, options=options)
    assert ended.code == -signal.SIGTERM, ended.output
    assert sealed(run) == 12  # batch 13 was not done with
    found = torch.value("fit", run=str(run), model="dense", options=options)
    assert found["report"]["step"] == 12
    assert found["state"] == torch.twin("fit", model="dense")["state"]
