"""The scripts of each trainer, if it is installed: imported once, and each life is forked off this process (tests/kills)."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.support.launcher import Launcher

_PACKAGES = {"huggingface": "transformers", "accelerate": "accelerate", "lightning": "lightning"}
_VARIABLES = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def _scripts(framework: str) -> ModuleType:
    package = _PACKAGES[framework]
    if importlib.util.find_spec(package) is None:
        why = f"{package} is not installed"
        if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
            pytest.fail(f"TRANLOGS_REQUIRE_ALL=1, and {why}")
        pytest.skip(why)
    os.environ.update(_VARIABLES)
    return importlib.import_module(f"tests.trainers.{framework}")


@pytest.fixture(scope="session")
def huggingface() -> ModuleType:
    return _scripts("huggingface")


@pytest.fixture(scope="session")
def accelerate() -> ModuleType:
    return _scripts("accelerate")


@pytest.fixture(scope="session")
def lightning() -> ModuleType:
    return _scripts("lightning")


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Starts groups of processes; those of Lightning, which only a soak has, import it themselves."""
    modules = ("tests.trainers.huggingface", "tests.trainers.accelerate")
    made = Launcher(tmp_path_factory.mktemp("trainers"), *modules, **_VARIABLES)
    yield made
    made.close()
