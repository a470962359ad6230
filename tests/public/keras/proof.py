"""Kill a script by SIGKILL, run it again, and compare it with one that nobody killed. Keras stays out of this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.keras.lab import Lab, differences


def run_killed(lab: Lab, script: str, folder: Path, places: list[list[Any]], **arguments: Any) -> tuple[Any, Any]:
    """Return the outcomes of the uninterrupted script and of the killed one."""
    whole = lab.start(script, run=str(folder / "whole"), die=None, **arguments)
    for place in places:
        ended = lab.run(script, run=str(folder / "killed"), die=place, **arguments)
        assert ended.was_killed, ended.output[-6000:]
    resumed = lab.value(script, run=str(folder / "killed"), die=None, **arguments)
    right = whole.wait()
    assert right.code == 0, right.output[-6000:]
    return right.value, resumed


def prove_exact(lab: Lab, script: str, folder: Path, places: list[list[Any]], **arguments: Any) -> Any:
    """Demand equal bits, and a report that says so."""
    right, resumed = run_killed(lab, script, folder, places, **arguments)
    assert right["history"] == resumed["history"]
    assert right["others"] == resumed["others"]
    assert differences(right["state"], resumed["state"]) == []
    assert resumed["exact"] is True, resumed["notes"]
    return resumed
