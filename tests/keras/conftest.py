"""One lab a backend for all tests; what is not installed is a skip, or a failure in CI."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from tests.keras.lab import Lab, Labs


def missing(why: str) -> None:
    if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
        pytest.fail(f"TRANLOGS_REQUIRE_ALL=1, and {why}")
    pytest.skip(why)


def find_lab(labs: Labs, backend: str, keras: Path | None = None) -> Lab:
    """Return the lab of a backend that is installed."""
    for package in ("keras", backend):
        if importlib.util.find_spec(package) is None:
            missing(f"{package} is not installed")
    return labs.of(backend, keras)


@pytest.fixture(scope="session")
def tensorflow(keras_labs: Labs) -> Lab:
    return find_lab(keras_labs, "tensorflow")


@pytest.fixture(scope="session")
def torch(keras_labs: Labs) -> Lab:
    return find_lab(keras_labs, "torch")


@pytest.fixture(scope="session")
def jax(keras_labs: Labs) -> Lab:
    return find_lab(keras_labs, "jax")


@pytest.fixture(scope="session")
def older_keras(keras_labs: Labs) -> Lab:
    """TensorFlow under the oldest Keras that is supported (`make test` fetches it)."""
    folder = Path(sys.prefix) / "keras-oldest"
    if not folder.is_dir():
        missing(f"the oldest supported Keras is not in {folder}: make test fetches it")
    return find_lab(keras_labs, "tensorflow", folder)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Lab:
    """The lab that a test's parameter names."""
    made: Lab = request.getfixturevalue(request.param)
    return made
