"""A validation that goes on reading a generator begins anew after a resume, and the report says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact, run_killed

SCRIPT = "tests.public.keras.validations:train"


@pytest.mark.crash
@pytest.mark.parametrize("backend", ["tensorflow", "torch"], indirect=True)
def test_a_generator_that_begins_anew_is_not_verified(backend: Lab, tmp_path: Path) -> None:
    right, resumed = run_killed(backend, SCRIPT, tmp_path, [["batch", 15]], kind="generator")
    assert right.of("history", "history", "val_loss") != resumed.of("history", "history", "val_loss")
    assert resumed.exact is None
    assert any("from a Python generator" in note for note in resumed.notes), resumed.notes


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["short generator", "some of the arrays", "arrays"])
def test_validation_that_begins_with_its_first_batch_each_time_is_exact(kind: str, torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, SCRIPT, tmp_path, [["batch", 15]], kind=kind)
