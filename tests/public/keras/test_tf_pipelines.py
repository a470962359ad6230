"""A tf.data pipeline goes on in the order of an uninterrupted run, or the report says that this is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.public.keras.proof import prove_exact

PIPELINES = "tests.public.keras.pipelines"
ENDING = [
    "shuffle",
    "shuffle-prefetch",
    "full-shuffle",
    "shuffle-repeat",
    "shuffle-repeat-prefetch",
    "repeat-shuffle",
    "shuffle-batch-repeat",
    "take",
    "repeat-take",
    "map",
    "interleave",
    "fixed",
    "several",
]
ENDLESS = [
    "shuffle-repeat",
    "shuffle-repeat-prefetch",
    "repeat-shuffle",
    "shuffle-batch-repeat",
    "full-shuffle",
    "filter",
    "map",
    "interleave",
    "several",
]


@pytest.mark.parametrize(("kind", "name"), [*(("ending", name) for name in ENDING), *(("endless", name) for name in ENDLESS)])
def test_the_order_comes_back_wherever_checkpoint_and_crash_are(kind: str, name: str, tensorflow: Lab) -> None:
    wrong, tried, doubts = tensorflow.value(f"{PIPELINES}.wrong_orders", kind=kind, name=name)
    assert tried >= 10
    if name == "several":
        assert any("shuffles in several places" in text for text in doubts)
    else:
        assert wrong == []
        assert doubts == []


def test_pipelines_without_a_fixed_order_are_named(tensorflow: Lab) -> None:
    found = tensorflow.value(f"{PIPELINES}.doubts")
    assert found["seeded"] == found["ordered"] == ""
    assert "a shuffle of the dataset has no seed" in found["unseeded"]
    assert "shuffles in several places" in found["several"]
    for name in ("interleave", "map", "options"):
        assert "deterministic=False" in found[name], name


@pytest.mark.crash
def test_an_endless_shuffled_dataset_after_its_first_repetition(tensorflow: Lab, tmp_path: Path) -> None:
    prove_exact(tensorflow, f"{PIPELINES}.endless", tmp_path, [["batch", 16], ["batch", 11]])
