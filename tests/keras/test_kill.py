"""A process that runs `model.fit` dies; the same script, run again, ends with the bits of one that nobody killed.

One matrix of backends, forms of data, and ways of compiling; all places of a fit; scripts put together at random.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.crash import tally
from tests.crash.test_signals import sealed
from tests.keras.lab import Lab
from tests.keras.proof import Place, end, prove_exact, run_whole, whole_of
from tests.kills.job import Death
from tests.kills.judge import killed
from tests.kills.launchers import Server
from tests.monitor.monitors import is_running
from tests.support import campaign
from tests.support.waiting import wait_until
from tranlogs.journal import read_owner

pytestmark = pytest.mark.crash

GATE: list[tuple[str, dict[str, Any]]] = [
    ("torch", {"data": "arrays", "model": "cnn", "optimizer": "adam-schedule", "validation": True, "beside": ["counting"]}),
    ("torch", {"data": "numbered-augmented"}),
    ("torch", {"data": "generator", "model": "global-noise"}),
    ("torch", {"data": "loader", "options": {"log": "weights"}}),
    ("torch", {"data": "dataset"}),
    ("torch", {"data": "arrays-steps", "epochs": 6, "options": {"data_order": "keras"}}),
    ("torch", {"data": "arrays-class-weight", "optimizer": "adam-loss-scale", "compiled": {"policy": "mixed_float16"}}),
    ("tensorflow", {"data": "arrays", "model": "line", "validation": True, "beside": ["plateau", "clamp"]}),
    ("jax", {"data": "arrays", "compiled": {"jit_compile": True}}),
]
SOAK: list[tuple[str, dict[str, Any]]] = [
    ("torch", {"data": "numbered-workers"}),
    ("torch", {"data": "numbered", "options": {"data_order": "keras"}}),
    *(("tensorflow", {"data": data, "model": "line"}) for data in ("numbered", "dataset", "dataset-python")),
    ("tensorflow", {"data": "dataset-repeat", "model": "line", "epochs": 5, "options": {"checkpoint_every": 1}}),
    ("tensorflow", {"data": "generator", "model": "global-noise", "options": {"data_order": "keras"}}),
    ("tensorflow", {"model": "cnn", "optimizer": "adam-schedule", "validation": True, "beside": ["counting"]}),
    ("tensorflow", {"compiled": {"jit_compile": True}}),
    ("tensorflow", {"compiled": {"run_eagerly": True}}),
    ("tensorflow", {"compiled": {"executions": 4}}),
    ("tensorflow", {"options": {"log": "weights"}}),
    ("jax", {"data": "generator", "compiled": {"jit_compile": True}}),
    ("jax", {"compiled": {"jit_compile": True, "executions": 4}}),
    ("jax", {"options": {"log": "weights"}, "compiled": {"jit_compile": True}}),
]


@pytest.mark.parametrize(
    ("backend", "arguments"), [*GATE, *(campaign.in_soak(*one) for one in SOAK)], indirect=["backend"], ids=str
)
def test_kills_in_the_middle_of_epochs_leave_no_trace(backend: Lab, arguments: dict[str, Any], tmp_path: Path) -> None:
    executions = arguments.get("compiled", {}).get("executions", 1)
    prove_exact(backend, "fits:fit", tmp_path, [["batch", -(-13 // executions)]], **arguments)
    if (tmp_path / "whole").exists():
        whole, killed = ({*(tmp_path / name / "ids").read_text().split()} for name in ("whole", "killed"))
        assert (len(killed), whole & killed) == (1, set()), "the id that the script reads before fit, in every life"


@pytest.mark.parametrize(
    "places",
    [
        [["begin", 1], ["batch", 10], ["batch", 2]],  # also the last one of an epoch, and the first one of the next
        [["before", 1], ["after", 1], ["validation", 2], ["end", 1]],
        [["boundary.before", 4], ["boundary.after", 6], ["recovery.replayed", 1]],
        [["batch", 13], ["begin", 1], ["batch", 1]],  # a unit that is computed again is killed before its step, and behind it
    ],
    ids=str,
)
def test_a_kill_at_any_place_leaves_no_trace(places: list[Place], torch: Lab, tmp_path: Path) -> None:
    prove_exact(torch, "fits:fit", tmp_path, places, validation=True, beside=["plateau", "counting"])


@pytest.mark.soak
def test_the_oldest_supported_keras(older_keras: Lab, tmp_path: Path) -> None:
    prove_exact(older_keras, "fits:fit", tmp_path, [["batch", 13]], model="line", validation=True)


@pytest.mark.soak
def test_replicas_log_weights_and_come_back(tensorflow: Lab, tmp_path: Path) -> None:
    prove_exact(tensorflow, "fits:mirrored", tmp_path, [["batch", 13]], warns=("trained on 2 replicas",))


def test_sigterm_ends_a_fit_with_its_log_sealed(torch: Lab, tmp_path: Path) -> None:
    options = {"durability": "machine"}
    status, said = end(torch, "fits:fit", tmp_path / "told", beside=["told"], options=options)
    assert status == -signal.SIGTERM, said
    assert sealed(tmp_path / "told" / "run") == 12, "batch 13 was not done with"
    found = run_whole(torch, "fits:fit", tmp_path / "told", options=options)
    assert (found.step, found.recheck) == (11, "equal"), "step 12 is computed again"
    assert found.of("model") == whole_of(torch, "fits:fit", tmp_path).of("model")


def test_a_fit_whose_disk_is_lost_goes_on_from_the_store(torch: Lab, tmp_path: Path) -> None:
    """Its monitor outlives it, and ships what is left."""
    store, folder = tmp_path / "store", tmp_path / "killed"
    store.mkdir()  # a store that is not there is none that is empty
    options: dict[str, Any] = {"store": str(store)}
    status = killed(
        "tests.keras.fits:fit",
        folder,
        Death("batch", number=13),
        launcher=Server(torch),
        arguments={"options": options | {"monitor": ["1GiB", None, "0.1s"]}},
    )
    assert status == -signal.SIGKILL
    wait_until(lambda: read_owner(folder / "run/rank0", "monitor") is not None, "the monitor")
    monitor = read_owner(folder / "run/rank0", "monitor")
    assert monitor is not None
    wait_until(lambda: not is_running(monitor.pid), "the monitor's end, when it has shipped what was left")
    shutil.rmtree(folder / "run")
    found = run_whole(torch, "fits:fit", folder, options=options)
    assert (found.step, found.recheck) == (11, "equal"), "step 12 is computed again"
    assert found.of("model") == whole_of(torch, "fits:fit", tmp_path).of("model")


FAULT = "SIGKILL of a fit, of a script put together at random"
_DATA = ["arrays", "arrays-in-order", "arrays-by-batch", "arrays-steps", "arrays-class-weight", "arrays-sample-weight"]
_DATA += ["numbered", "numbered-own-order", "generator", "loader"]
# Without a schedule: callbacks set the learning rate.
_OPTIMIZERS = ["adam", "sgd", "sgd-nesterov-decay", "adam-clipnorm", "adam-ema", "adam-accumulate", "rmsprop-centered", "lion"]
_BESIDE = ["stopping", "plateau", "schedule", "batch-rate", "clamp", "collecting", "counting"]
_POINTS = ["checkpoint.snapshot", "checkpoint.state", "checkpoint.publish", "log.begin", "log.before_commit"]
_POINTS += ["log.after_commit", "log.roll", "log.seal", "catalog.before_commit", "boundary.before", "boundary.after"]
_POINTS += ["recovery.restored", "recovery.replayed"]
SCRIPTS = st.fixed_dictionaries(
    {
        "data": st.sampled_from(_DATA),
        "model": st.sampled_from(["dense", "dense", "cnn", "sparse", "constrained", "global-noise"]),
        "optimizer": st.sampled_from(_OPTIMIZERS),
        "epochs": st.integers(1, 4),
        "validation": st.booleans(),
        "beside": st.lists(st.sampled_from(_BESIDE), max_size=3, unique=True),
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
    st.tuples(st.sampled_from(["batch", "begin"]), st.integers(1, 25)),
    st.tuples(st.sampled_from(["before", "after", "validation"]), st.integers(1, 4)),
    st.tuples(st.sampled_from(_POINTS), st.integers(1, 12)),
)


@pytest.mark.timeout(3600)
@settings(max_examples=campaign.rounds(10), phases=[Phase.generate])
@given(script=SCRIPTS, deaths=st.lists(DEATHS, min_size=1, max_size=4))
def test_any_script_that_is_killed_anywhere_ends_with_the_right_bits(
    torch: Lab, script: dict[str, Any], deaths: list[tuple[str, int]]
) -> None:
    name, launcher = "tests.keras.fits:fit", Server(torch)
    with tempfile.TemporaryDirectory() as folder:
        right = run_whole(torch, "fits:fit", Path(folder, "whole"), **script)
        kills = 0
        for place, number in deaths:  # a place that is not come to lets it train to its end
            death = Death(place, number=number)
            status = killed(name, Path(folder, "run"), death, launcher=launcher, arguments=script)
            assert status in (0, -signal.SIGKILL), launcher.said()
            kills += status != 0
        with tally.trying(FAULT):
            found = run_whole(torch, "fits:fit", Path(folder, "run"), **script)
            assert found.differences(right) == []
            assert found.exact is not False, found.notes
        tally.note(FAULT, kills)
