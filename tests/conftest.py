"""What all tests share: properties print what fails and wait for nobody, and a missing right is a skip, or a failure in CI."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "tranlogs", deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tranlogs")

# One for all modules and for all workers of pytest-xdist, which take it over.
os.environ.setdefault("TRANLOGS_SEED", str(random.SystemRandom().randrange(1, 10**9)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
            pytest.fail("TRANLOGS_REQUIRE_ALL=1, and this test needs root")
        pytest.skip("needs root")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """OpenMP's threads do not survive a fork, and a recovery sets back those of its run: each test begins with one."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is room: for tests about bytes, which need no disk and copy many files."""
    if not os.path.isdir("/dev/shm") or shutil.disk_usage("/dev/shm").free < 1 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
