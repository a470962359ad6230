"""tf.data: orders of shuffle, repeat, batch, prefetch, map, interleave, take go on with the right batches, or are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.keras.test_data import SMALL
from tests.keras.test_kill import prove_exact
from tests.support import campaign

PIPELINES = "tests.public.keras.pipelines"
FINITE = [
    "shuffle",
    "shuffle, prefetch",
    "shuffle of all",
    "shuffle, repeat(2)",
    "shuffle, repeat(2), prefetch",
    "repeat(2), shuffle",
    "batch, repeat(2)",
    "take",
    "map",
    "interleave",
    "zip",
    "two shuffles",
    "shuffle, batch, shuffle",
    "shuffle, repeat(2), shuffle",
    "shuffled once",
]
ENDLESS = [
    "shuffle, repeat",
    "shuffle, repeat, prefetch",
    "shuffle of all, repeat",
    "repeat, shuffle",
    "batch, repeat",
    "batch, repeat, no prefetch",
    "two shuffles, repeat",
    "interleave, repeat",
]


@pytest.fixture(scope="module")
def wrong_places(tensorflow: Lab) -> dict[str, list[str]]:
    """Of each pipeline, from which places it goes on with other batches; all are tried in one process."""
    found: dict[str, list[str]] = tensorflow.value(f"{PIPELINES}.all_wrong_places")
    return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FINITE)
def test_a_finite_pipeline_goes_on_with_the_right_batches(name: str, wrong_places: dict[str, list[str]]) -> None:
    """In the pass that was left and in those that follow it."""
    assert wrong_places[name] == []


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_pipeline_goes_on_with_the_right_batches(name: str, wrong_places: dict[str, list[str]]) -> None:
    """Before and behind each beginning of the data."""
    assert wrong_places[name] == []


def test_what_cannot_be_brought_back_is_named(tensorflow: Lab) -> None:
    said = tensorflow.value(f"{PIPELINES}.doubts")
    assert {name: said[name] for name in FINITE + ENDLESS if said[name]} == {}
    assert "has no seed" in said["unseeded"][0]
    for name in ("unordered", "unordered interleave", "unordered map"):
        assert "in which threads finish" in said[name][0], name


@pytest.mark.crash
@pytest.mark.parametrize("data", ["dataset-repeat", campaign.in_soak("dataset-twice")])
def test_a_fit_whose_data_begin_anew_within_an_epoch(data: str, tensorflow: Lab, tmp_path: Path) -> None:
    """With a checkpoint behind every step, so that one lies behind each repetition."""
    deaths = [{"die": ["batch", 4]}, {"die": ["batch", 9]}, {"die": ["batch", 14]}]
    prove_exact(tensorflow, tmp_path, deaths, data=data, epochs=5, options={"checkpoint_every": 1}, **SMALL)
