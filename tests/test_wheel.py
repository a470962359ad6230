"""The wheel is enough: in a fresh environment outside the checkout the command works from it, and in a soak the demo.

The fresh environment has TranLogs from the wheel. Other packages come from the folder in which the tests found theirs, named
in a .pth file: that makes it a plain entry of `sys.path`, whose own .pth files, an editable install's among them, do nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.demo.test_demo import DEMO, demand_exact

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = (ROOT, ROOT / "integrations", ROOT / "monitor")


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the wheel, and a folder to work in. Neither knows the checkout."""

    folder: Path
    work: Path

    def __call__(self, program: str, *arguments: object, code: int = 0, **environment: str) -> str:
        """Run a program of the environment in the working folder, and return its stdout; it must end with `code`."""
        command = [str(self.folder / "bin" / program), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.work, env=clean() | environment, capture_output=True, text=True)
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def clean() -> dict[str, str]:
    """Return the environment variables without those that lead to the checkout or to packages of the user's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRANLOGS"))}
    return kept | {"PYTHONNOUSERSITE": "1"}


def product_files() -> set[str]:
    """Return every file that the packages have in the checkout, by its name in the wheel."""
    found = set()
    for root in SOURCE_ROOTS:
        for package in root.glob("tranlogs*/__init__.py"):
            found |= {path.relative_to(root).as_posix() for path in checked_out(package.parent)}
    return found


def checked_out(folder: Path) -> list[Path]:
    """Return the files below a folder that git tracks, or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", str(folder)]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from an sdist of a copy of the checkout: nothing that lies there from earlier builds is in it."""
    folder = tmp_path_factory.mktemp("build")
    for path in checked_out(ROOT):
        target = folder / "source" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(folder / "source")]
    done = subprocess.run(command, cwd=folder, env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel into a new environment, as `pip install` does, with the other packages of this one."""
    made = Installed(tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("work"))
    venv.create(made.folder, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(made.folder / "bin" / "python"), "install"]
    command += ["--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, env=clean(), check=True, capture_output=True)
    others = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (packages,) = made.folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    return made


def test_a_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if not name.endswith("/")}
    about = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    assert names - about == product_files()
    assert {"tranlogs/py.typed", "tranlogs_demo/py.typed", "tranlogs_monitor/dashboard/static/page.js"} <= names
    assert {name.partition(".dist-info/")[2] for name in about} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "top_level.txt",
    }


def test_packages_come_from_the_wheel_and_the_checkout_is_unknown(installed: Installed) -> None:
    packages = sorted({name.partition("/")[0] for name in product_files()})
    code = (
        "import importlib.metadata as m, importlib.util as u, json, sys\n"
        f"places = {{name: u.find_spec(name).origin for name in {packages}}}\n"
        "entries = [e.value for g in ('frameworks', 'daemons', 'demos') for e in m.entry_points(group=f'tranlogs.{g}')]\n"
        "print(json.dumps({'places': places, 'path': sys.path, 'entries': entries}))"
    )
    told = json.loads(installed("python", "-c", code))
    assert len(packages) == 5
    for name, place in told["places"].items():
        assert Path(place).is_relative_to(installed.folder), f"{name} is at {place}"
    assert not [entry for entry in told["path"] if entry and Path(entry).resolve() in SOURCE_ROOTS]
    assert sorted(told["entries"]) == [
        "tranlogs_demo:run_demo",
        "tranlogs_keras.replay.offline:OfflineRun",
        "tranlogs_monitor.command:COMMAND",
        "tranlogs_torch.offline.run:OfflineRun",
    ]
    help_text = installed("tranlogs", "--help")
    for name in ("demo", "status", "log", "verify", "replay", "rehearse", "monitor", "push", "pull"):
        assert f"\n  {name} " in help_text


@pytest.mark.soak
@pytest.mark.crash
def test_the_demo_is_exact(installed: Installed) -> None:
    """With the model that users get, in processes of its own; the gate has a tiny one (tests/demo)."""
    demand_exact(installed("python", "-c", DEMO), installed.work)
