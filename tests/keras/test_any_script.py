"""Scripts put together at random from all that a fit may have, killed at random places: each ends with the right bits."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.crash import tally
from tests.keras.lab import Lab, differences
from tests.support import campaign

pytestmark = pytest.mark.crash

FAULT = "SIGKILL of a fit, of a script put together at random"
# Without a schedule: callbacks set the learning rate.
OPTIMIZERS = ["adam", "sgd", "sgd-nesterov-decay", "adam-clipnorm", "adam-ema", "adam-accumulate", "rmsprop-centered", "lion"]
BESIDE = ["stopping", "plateau", "schedule", "batch-rate", "clamp", "collecting", "counting"]
POINTS = [
    "checkpoint.snapshot",
    "checkpoint.state",
    "checkpoint.publish",
    "log.begin",
    "log.before_commit",
    "log.after_commit",
    "log.roll",
    "log.seal",
    "catalog.before_commit",
    "boundary.before",
    "boundary.after",
    "recovery.restored",
    "recovery.replayed",
]

SCRIPTS = st.fixed_dictionaries(
    {
        "data": st.sampled_from(
            [
                "arrays",
                "arrays-in-order",
                "arrays-by-batch",
                "arrays-steps",
                "arrays-weighted",
                "numbered",
                "numbered-own-order",
                "generator",
                "loader",
            ]
        ),
        "model": st.sampled_from(["dense", "dense", "cnn", "sparse", "constrained", "global-noise"]),
        "optimizer": st.sampled_from(OPTIMIZERS),
        "epochs": st.integers(1, 4),
        "validation": st.booleans(),
        "others": st.lists(st.sampled_from(BESIDE), max_size=3, unique=True),
        "seed": st.integers(0, 1000),
        "options": st.fixed_dictionaries(
            {
                "log": st.sampled_from(["gradients", "weights"]),
                "checkpoint_every": st.sampled_from([2, 7, 1000]),
                "durability": st.sampled_from(["process", "machine"]),
                "keep": st.integers(1, 3),
            }
        ),
    }
)
DEATHS = st.one_of(
    st.tuples(st.sampled_from(["batch", "batch-begin"]), st.integers(1, 25)).map(lambda place: {"die": list(place)}),
    st.tuples(st.sampled_from(["epoch-end", "validation"]), st.integers(1, 4)).map(lambda place: {"die": list(place)}),
    st.tuples(st.sampled_from(POINTS), st.integers(1, 12)).map(lambda hit: {"failpoint": f"{hit[0]}=kill@{hit[1]}"}),
)


@pytest.mark.timeout(3600)
@settings(max_examples=campaign.rounds(10), phases=[Phase.generate])
@given(script=SCRIPTS, deaths=st.lists(DEATHS, min_size=1, max_size=4))
def test_any_script_that_is_killed_anywhere_ends_with_the_right_bits(
    torch: Lab, script: dict[str, Any], deaths: list[dict[str, Any]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uninterrupted = torch.start("fit", run=str(Path(folder) / "whole"), **script)
        kills = 0
        for death in deaths:  # a place that is not come to lets it train to its end
            ended = torch.run("fit", run=str(Path(folder) / "run"), **(script | death))
            assert ended.was_killed or ended.code == 0, ended.output[-6000:]
            kills += ended.was_killed
        with tally.trying(FAULT):
            found = torch.value("fit", run=str(Path(folder) / "run"), **script)
            right = uninterrupted.wait()
            assert right.code == 0, right.output[-6000:]
            assert differences(right.value["state"], found["state"]) == []
            assert [found[what] for what in ("history", "epochs")] == [right.value[what] for what in ("history", "epochs")]
            assert found["report"]["exact"] is not False, found["report"]
        tally.note(FAULT, kills)
