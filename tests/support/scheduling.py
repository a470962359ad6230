"""How the processes of the gate share the tests (`-n N --dist loadfile`).

All tests of a file run in one process, since they share what a fixture of the file has trained or started. So do all tests of
some folders, which share a server for the whole session. Most of these tests wait, for a disk, for other processes or for a
time limit: more processes than processors are worth it. What takes longest begins first, so that no process is left alone
with it at the end.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

TOGETHER = ("tests/alluxio", "tests/distributed", "tests/trainers", "tests/keras", "tests/public/keras")
FIRST = (
    "tests/distributed",
    "tests/keras",
    "tests/alluxio",
    "tests/public/keras",
    "tests/trainers",
    "tests/experiments/test_bench.py",
    "tests/test_wheel.py",
    "tests/crash/test_system_calls.py",
    "tests/crash/test_kill_core.py",
    "tests/crash/test_kill_torch.py",
    "tests/journal/test_disk_full.py",
    "tests/experiments/test_peers.py",
    "tests/experiments/test_run.py",
    "tests/torch/replay/test_exact_matrix.py",
    "tests/torch/data/test_data.py",
)


def unit_of(nodeid: str) -> str:
    """Return the unit that a test belongs to: a folder or a file."""
    path = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if path.startswith(f"{folder}/")), path)


def put_longest_first(items: list[pytest.Item]) -> None:
    """Sort the tests so that long units begin first; the order within a unit stays."""
    places = {unit: place for place, unit in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(unit_of(item.nodeid), len(FIRST)))


class GateScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Give each process a unit at a time, in the order of the tests."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
