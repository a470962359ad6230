"""Set-up that all tests share: `--soak`, the seed, Hypothesis' profiles, and what a missing right or tool means."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests.support import campaign, disks
from tests.support.huge_pages import collapse_memory

if TYPE_CHECKING:
    from tests.alluxio.cluster import Cluster
    from tests.crash.processes import Processes
    from tests.crash.toy_trainers import Trainers
    from tests.keras.lab import Labs
    from tests.monitor.monitors import Monitors

_PROFILE = {"deadline": None, "database": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("gate", derandomize=True, max_examples=campaign.examples(100), **_PROFILE)
settings.register_profile("soak", **_PROFILE)

# Threads of OpenMP that wait must not spin: the processes that share the tests have more of them than there are cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Tests of recovery ask where it lands: at the newest boundary, if no unit is computed again. The recheck has tests of its own,
# and is on in tests/torch and tests/public, as it is for users.
os.environ.setdefault("TRANLOGS_RECHECK", "0")

# Child processes import the checkout: its packages, and `tests.support`. An editable install knows the packages only.
_ROOT = Path(__file__).parents[1]
_SOURCES = (_ROOT, _ROOT / "integrations", _ROOT / "monitor")
os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, _SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says how much runs."""
    parser.addoption("--soak", action="store_true", help="run whole random campaigns and products, from a seed drawn anew")


def pytest_configure(config: pytest.Config) -> None:
    """Say how much runs and from which seed, before test modules are imported; processes of pytest-xdist inherit it."""
    if config.getoption("--soak"):
        os.environ.setdefault("TRANLOGS_SOAK", "1")
    drawn = random.SystemRandom().randrange(1, 10**9) if campaign.is_soak() else campaign.GATE_SEED
    os.environ.setdefault("TRANLOGS_SEED", str(drawn))
    settings.load_profile("soak" if campaign.is_soak() else "gate")


def pytest_report_header() -> str:
    """Tell the seed."""
    share = f"TRANLOGS_SOAK={os.environ['TRANLOGS_SOAK']} " if campaign.is_soak() else "a fifth of each campaign of kills, "
    return f"{share}TRANLOGS_SEED={campaign.seed()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what is slow, or one process goes on with it when the others have ended.

    Unless this is a soak, leave out what is marked `soak`, and of what is marked `sampled` all but a sample.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if campaign.is_soak():
        return
    left_out = {item for item in items if item.get_closest_marker("soak") is not None}
    left_out |= campaign.left_out([item for item in items if item not in left_out])
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Set aside what was imported: the garbage collector would look through it again and again, and copy it in each child."""
    gc.collect()
    gc.freeze()
    if "torch" in sys.modules:
        collapse_memory()


def pytest_unconfigure() -> None:
    """Let the garbage collector have everything: libraries warn of what is left at the end."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        _cannot("this test needs root")
    if item.get_closest_marker("disks") is not None and (why := disks.why_not()):
        _cannot(f"this test {why}")


def _cannot(why: str) -> NoReturn:
    if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
        pytest.fail(f"TRANLOGS_REQUIRE_ALL=1, and {why}")
    pytest.skip(why)


@pytest.fixture(scope="session", autouse=True)
def _one_thread_for_fixtures() -> None:
    """What a fixture of a session or module trains must round as what the tests train."""
    _set_one_thread()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """OpenMP's threads do not survive a fork, and a recovery sets back those of its run: each test begins with one."""
    _set_one_thread()


def _set_one_thread() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _other_tests_are_no_script(request: pytest.FixtureRequest) -> Iterator[None]:
    """What starts over is looked for in all modules of a script; here those are hundreds, of tests that do not run now."""
    frames = sys.modules.get("tranlogs.training.restarts.script_frames")
    if frames is None:
        yield
        return
    is_of_script, own = frames.is_of_script, request.module.__name__

    def is_of_this_test(module: str) -> bool:
        return is_of_script(module) and (module == own or not module.rpartition(".")[2].startswith("test_"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "is_of_script", is_of_this_test)
        frames._script_modules.cache_clear()
        yield
    frames._script_modules.cache_clear()


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is room: for tests about bytes, which need no disk and copy many files."""
    if not os.path.isdir("/dev/shm") or shutil.disk_usage("/dev/shm").free < 1 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of this process are rolled after few records, so that a short run has many segments."""
    from tranlogs.log import preallocator

    monkeypatch.setattr(preallocator, "SEGMENT_RECORDS_WANTED", 1)


@pytest.fixture(scope="session")
def keras_labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labs]:
    """Labs of all backends of Keras, for all folders that use some. Processes of pytest-xdist share their servers."""
    from tests.keras.lab import Labs

    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "keras-servers"
    shared.mkdir(exist_ok=True)
    with closing(Labs(tmp_path_factory.mktemp("keras"), shared)) as made:
        yield made


@pytest.fixture(scope="module")
def trainers() -> Iterator[Trainers]:
    """Toy trainers that are killed; what each comes back to is compared with a run that was not."""
    from tests.crash.toy_trainers import Trainers

    with closing(Trainers()) as made:
        yield made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Processes]:
    """Starts processes for tests of crashes, and kills those that are left at the end."""
    from tests.crash.processes import Processes

    with closing(Processes(tmp_path)) as made:
        yield made


@pytest.fixture(scope="module")
def monitors() -> Iterator[Monitors]:
    """Monitors that are killed."""
    from tests.monitor.monitors import Monitors

    with closing(Monitors()) as made:
        yield made


@pytest.fixture(scope="session")
def _alluxio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from tests.alluxio.cluster import Cluster, Missing

    home = tmp_path_factory.mktemp("alluxio")
    try:
        with Cluster(home) as cluster:
            yield cluster
    except Missing as error:
        _cannot(f"Alluxio cannot be started: {error}")
    finally:
        shutil.rmtree(home)


@pytest.fixture
def alluxio(_alluxio: Cluster) -> Cluster:
    """A real Alluxio cluster with two workers, whole before the test. Each process of pytest-xdist has its own."""
    _alluxio.mend()
    return _alluxio
