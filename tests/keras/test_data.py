"""The batches that follow a crash are those that would have followed without it, whatever `fit` is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras.lab import Lab
from tests.keras.test_kill import prove_exact
from tests.support import campaign

pytestmark = pytest.mark.crash

SMALL = {"model": "line", "optimizer": "sgd"}  # the data are the subject here
EVERYWHERE = [
    "arrays-in-order",
    "arrays-by-batch",
    "arrays-steps",
    "arrays-weighted",
    "numbered",
    "numbered-workers",
    "numbered-own-order",
    "generator",
    "loader",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("data", [*EVERYWHERE, "numbered-augmented"])
def test_on_torch(data: str, torch: Lab, tmp_path: Path) -> None:
    deaths = [{"die": ["batch", 13]}, *([{"die": ["batch", 11]}] if campaign.is_soak() else [])]
    prove_exact(torch, tmp_path, deaths, data=data, epochs=6 if "steps" in data else 3, **SMALL)


@pytest.mark.parametrize(
    "data",
    [
        campaign.in_soak("dataset"),  # with a checkpoint behind each step below, and a repeated one in test_pipelines.py
        campaign.in_soak("dataset-repeat"),
        "dataset-python",
        "numbered",
        campaign.in_soak("numbered-workers"),
        campaign.in_soak("numbered-own-order"),
        "generator",
        campaign.in_soak("loader"),
        campaign.in_soak("arrays-steps"),
    ],
)
def test_on_tensorflow(data: str, tensorflow: Lab, tmp_path: Path) -> None:
    prove_exact(tensorflow, tmp_path, [{"die": ["batch", 13]}], data=data, epochs=6 if "steps" in data else 3, **SMALL)


@pytest.mark.parametrize("data", [campaign.in_soak("numbered"), "generator", campaign.in_soak("loader")])
def test_on_jax(data: str, jax: Lab, tmp_path: Path) -> None:
    prove_exact(jax, tmp_path, [{"die": ["batch", 13]}], data=data, jit=True, model="dense", optimizer="adam")


@pytest.mark.parametrize(
    ("backend", "data"),
    [
        ("tensorflow", "arrays"),
        campaign.in_soak("torch", "arrays"),
        ("torch", "numbered"),
        campaign.in_soak("tensorflow", "numbered"),
    ],
    indirect=["backend"],
)
def test_in_the_order_that_keras_itself_draws(backend: Lab, data: str, tmp_path: Path) -> None:
    prove_exact(backend, tmp_path, [{"die": ["batch", 13]}], data=data, options={"data_order": "keras"}, **SMALL)


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"], indirect=True)
def test_each_pass_of_a_loop_reads_its_arrays_as_they_are_now(backend: Lab) -> None:
    found = backend.value("scenario.data.passes_over_changed_arrays")
    assert sum(found["as given"]) == sum(range(12))
    assert sum(found["changed"]) == sum(range(12)) + 12 * 100


def test_a_dataset_whose_prefetching_has_drained_the_epoch(tensorflow: Lab, tmp_path: Path) -> None:
    deaths = [{"die": ["batch", 9]}, {"die": ["batch", 10]}]
    prove_exact(tensorflow, tmp_path, deaths, data="dataset", options={"checkpoint_every": 1}, **SMALL)


def test_pipelines_that_cannot_be_brought_back_are_named_before_training(tensorflow: Lab, tmp_path: Path) -> None:
    found = tensorflow.value("doubtful_datasets", folder=str(tmp_path))
    assert "a map of the dataset" not in found["plain"] + found["sequential"]
    assert "writes variables, such as the seed of a Keras layer" in found["layer"]
    assert "calls Python" in found["python"]
    assert "draws random numbers in parallel" in found["parallel"]


@pytest.mark.parametrize("data", ["generator", campaign.in_soak("arrays")])
def test_keras_own_random_numbers_come_back_beside_data_that_are_drawn_ahead(
    data: str, tensorflow: Lab, tmp_path: Path
) -> None:
    prove_exact(
        tensorflow,
        tmp_path,
        [{"die": ["batch", 13]}],
        data=data,
        model="global-noise",
        optimizer="adam",
        options={"data_order": "keras"},
    )
