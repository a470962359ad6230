"""Stateful recurrent layers come back with their states and their dropout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact

SCRIPT = "tests.public.keras.recurrent.train"


@pytest.mark.crash
@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize("backend", ["tensorflow", "torch"], indirect=True)
def test_stateful_layers_come_back(resets: bool, backend: Lab, tmp_path: Path) -> None:
    """Killed in the middle of an epoch, and where one ends."""
    prove_exact(backend, SCRIPT, tmp_path, [["batch", 9], ["epoch-end", 1]], resets=resets)
