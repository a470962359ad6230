"""Fits that are more than one training: a script's own resume, and layers that are thawed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact, run_whole

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("style", ["sequential", "functional", "weights"])
def test_a_script_that_resumes_by_itself_is_recognised(style: str, torch: Lab, tmp_path: Path) -> None:
    """Killed in its third epoch and in the next one: the model that it loads has other names than the one that it built."""
    prove_exact(torch, "tests.cases.fits:resumed", tmp_path, [["batch", 15], ["batch", 6]], style=style)


def test_a_first_epoch_that_the_script_takes_for_done_is_trained_to_its_end(torch: Lab, tmp_path: Path) -> None:
    """Killed after the script's callbacks have saved the first epoch, and before its last batch is proven."""
    prove_exact(torch, "tests.cases.fits:resumed", tmp_path, [["after", 1]], style="weights")


def test_a_callback_that_thaws_layers_and_compiles_again_is_told_to_write_two_fits(torch: Lab, tmp_path: Path) -> None:
    (said,) = run_whole(torch, "tests.cases.fits:thawed_within", tmp_path).printed
    assert "model.compile was called while fit runs" in said
    assert "Write two fits, and compile between them" in said


def test_layers_that_are_thawed_between_two_fits_resume(tensorflow: Lab, tmp_path: Path) -> None:
    """Killed before the layers are thawed, and twice after it."""
    places = [["batch", 9], ["batch", 9], ["batch", 6]]
    prove_exact(tensorflow, "tests.cases.fits:thawed_between", tmp_path, places)
