"""The logs of an epoch that is resumed at its end are those that the train_step had reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact
from tests.support import campaign


@pytest.mark.sampled(1)
@pytest.mark.crash
@pytest.mark.parametrize("backend", ["tensorflow", campaign.in_soak("torch"), "jax"], indirect=True)
def test_names_of_a_train_step_survive_a_kill_at_the_end_of_an_epoch(backend: Lab, tmp_path: Path) -> None:
    places: list[list[Any]] = [["before", 2], ["before", 1]]
    warns = ("weights are logged, not gradients: Named",)
    found = prove_exact(backend, "tests.public.keras.epoch_end:named", tmp_path, places, warns=warns)
    (_, names) = found.outcome["['history']['history']"]
    assert set(names) == {"my_loss", "learning_rate"}
