"""The attempt that finds the data at their end is no step: gradients go on being logged, and what came before it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact

SCRIPT = "tests.public.keras.ends_of_data:train"


@pytest.mark.crash
@pytest.mark.parametrize(
    ("backend", "batches", "executions"),
    [("jax", 7, 1), ("jax", 15, 1), ("jax", 31, 8), ("tensorflow", 15, 4)],
    indirect=["backend"],
)
def test_a_rate_that_changes_where_the_data_end_is_no_write_of_the_step(
    backend: Lab, batches: int, executions: int, tmp_path: Path
) -> None:
    place = -(-batches // executions) + 2
    resumed = prove_exact(backend, SCRIPT, tmp_path, [["batch", place]], batches=batches, executions=executions)
    assert resumed.exact is True


@pytest.mark.crash
@pytest.mark.parametrize("backend", ["tensorflow", "jax"], indirect=True)
def test_weights_that_are_written_where_the_data_end_are_logged(backend: Lab, tmp_path: Path) -> None:
    resumed = prove_exact(backend, SCRIPT, tmp_path, [["batch", 9]], batches=7, log="weights", shrinks=True)
    assert resumed.exact is True
