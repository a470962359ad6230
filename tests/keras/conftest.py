"""One lab a backend for all tests; what is not installed is a skip, or a failure in CI."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keras.lab import Lab, lab

BACKENDS = ("tensorflow", "torch", "jax")


def missing(why: str) -> None:
    if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
        pytest.fail(f"TRANLOGS_REQUIRE_ALL=1, and {why}")
    pytest.skip(why)


def _lab(backend: str, folder: Path, keras: Path | None = None) -> Iterator[Lab]:
    for package in ("keras", backend):
        if importlib.util.find_spec(package) is None:
            missing(f"{package} is not installed")
    with lab(backend, folder, keras) as made:
        yield made


@pytest.fixture(scope="session")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from _lab("tensorflow", tmp_path_factory.mktemp("tensorflow"))


@pytest.fixture(scope="session")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from _lab("torch", tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="session")
def jax(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from _lab("jax", tmp_path_factory.mktemp("jax"))


@pytest.fixture(scope="session")
def older_keras(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """TensorFlow under the oldest Keras that is supported (`make test` fetches it)."""
    folder = Path(sys.prefix) / "keras-oldest"
    if not folder.is_dir():
        missing(f"the oldest supported Keras is not in {folder}: make test fetches it")
    yield from _lab("tensorflow", tmp_path_factory.mktemp("older"), folder)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Lab:
    """The lab that a test's parameter names."""
    made: Lab = request.getfixturevalue(request.param)
    return made
