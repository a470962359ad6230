"""Fits that are more than one training: a script's own resume, and layers that a callback thaws."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact

pytestmark = pytest.mark.crash


def test_a_script_that_resumes_by_itself_is_recognised(torch: Lab, tmp_path: Path) -> None:
    """Killed in its third epoch and in the next one: the model that it loads has other names than the one that it built."""
    prove_exact(torch, "tests.cases.fits:resumed", tmp_path, [["batch", 15], ["batch", 6]])


@pytest.mark.parametrize("place", [["batch", 9], ["batch", 15]], ids=["before", "after"])
def test_a_fit_whose_callback_thaws_layers_and_compiles_again_resumes(
    place: list[object], tensorflow: Lab, tmp_path: Path
) -> None:
    prove_exact(tensorflow, "tests.cases.fits:thawed", tmp_path, [place])
