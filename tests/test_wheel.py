"""The wheel is enough: in a fresh environment outside the checkout the command, the demo, PyTorch and Keras all work from it.

The fresh environment has TranLogs from the wheel. Other packages come from the folder in which the tests found theirs, named
in a .pth file: that makes it a plain entry of `sys.path`, whose own .pth files, an editable install's among them, do nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import tranlogs
from tests.demo.test_demo import TINY, demand_exact
from tests.support import campaign
from tranlogs_demo.demo import commands

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = (ROOT, ROOT / "integrations", ROOT / "monitor")
UNTIL, KILLED_IN = 30, 17  # batches

# Runs a script once for each group of arguments, in forks of a process that has imported what the script imports.
LIVES = """
import importlib, json, os, runpy, sys

script, modules, lives = sys.argv[1], sys.argv[2].split(), json.loads(sys.argv[3])
for module in modules:
    importlib.import_module(module)
for arguments in lives:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(write, 1)
            sys.argv = [script, *arguments]
            runpy.run_path(script, run_name="__main__")
            sys.stdout.flush()
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    output = open(read).read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output]), flush=True)
"""

TORCH = """
import hashlib, os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tranlogs_torch import LoggedOptimizer

run, until, killed_in = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(64, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = LoggedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), run=run, model=model, checkpoint_every=10)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, until)
optimizer.track(scheduler=scheduler, loader=loader)
report = optimizer.recover()
for batch, (x, y) in enumerate(optimizer.batches(loader, until=until), start=report.batch + 1):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    if batch == killed_in:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    scheduler.step()
optimizer.close()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(optimizer.report.batch, optimizer.report.exact, digest)
"""

KERAS = """
import hashlib, os, signal, sys
import keras
import numpy as np
from tranlogs_keras import TranLogsCallback

run, until, killed_in = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).standard_normal((48, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(1e-2), "mse")
log = TranLogsCallback(run, checkpoint_every=10)
batches = 0

class Killer(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global batches
        batches += 1
        if batches == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)

model.fit(x, x.sum(1), epochs=until // 6, batch_size=8, callbacks=[Killer(), log], verbose=0)
digest = hashlib.sha256(b"".join(np.asarray(v).tobytes() for v in model.trainable_variables)).hexdigest()
print(log.report.batch, log.report.exact, digest)
"""


@dataclass(frozen=True, slots=True)
class Built:
    """What `python -m build` made."""

    wheel: Path
    sdist: Path


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
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build from a copy of the checkout: nothing that lies there from earlier builds is in it."""
    folder = tmp_path_factory.mktemp("build")
    for path in checked_out(ROOT):
        target = folder / "source" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(folder / "source")]
    done = subprocess.run(command, cwd=folder, env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel into a new environment, as `pip install` does, with the other packages of this one."""
    made = Installed(tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("work"))
    venv.create(made.folder, symlinks=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(made.folder / "bin" / "python"),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(built.wheel),
    ]
    subprocess.run(command, env=clean(), check=True, capture_output=True)
    others = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (packages,) = made.folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    return made


def test_a_wheel_holds_every_file_of_the_packages_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as file:
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


def test_an_sdist_holds_what_a_wheel_is_built_from(built: Built) -> None:
    """`python -m build` has made the wheel from it."""
    with tarfile.open(built.sdist) as file:
        names = {member.name.partition("/")[2] for member in file if member.isfile()}
    packages = {
        path.relative_to(ROOT).as_posix()
        for root in SOURCE_ROOTS
        for package in root.glob("tranlogs*/__init__.py")
        for path in checked_out(package.parent)
    }
    about = {name for name in names if name.startswith("tranlogs.egg-info/")} | {"PKG-INFO"}
    assert names - about == packages | {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg"}


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


def test_the_command_line_is_there(installed: Installed) -> None:
    help_text = installed("tranlogs", "--help")
    for name in ("demo", "status", "log", "verify", "replay", "rehearse", "monitor", "push", "pull"):
        assert f"\n  {name} " in help_text
    assert tranlogs.__version__ in installed("tranlogs", "--version")
    installed("tranlogs", "status", "none", code=2)


@pytest.mark.crash
@pytest.mark.slow
def test_the_demo_is_exact(installed: Installed) -> None:
    command = ["tranlogs"] if campaign.is_soak() else ["python", "-c", TINY]
    figures = json.loads(installed(*command, "demo", "--quick", "--json", "--seed", 7))
    demand_exact(figures, rechecked=1)  # as for a user
    assert Path(figures["run"]) == Path("demo-run/run")
    assert (installed.work / figures["curves"]).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    for words in commands(figures["run"], figures["batches"]):  # those that the demo names
        installed("tranlogs", *words.split())
    assert (installed.work / "state.pt").is_file()


@pytest.mark.crash
@pytest.mark.slow
def test_a_pytorch_script_that_is_killed_goes_on_exactly(installed: Installed) -> None:
    prove_exact(installed, "torch", TORCH, "torch torch._dynamo tranlogs_torch")
    out = installed.work / "torch.pt"
    installed("tranlogs", "replay", "torch-killed", "--step", UNTIL - 3, "--out", out)
    assert out.is_file()


@pytest.mark.crash
@pytest.mark.slow
def test_a_keras_script_that_is_killed_goes_on_exactly(installed: Installed) -> None:
    prove_exact(installed, "keras", KERAS, "keras tranlogs_keras", KERAS_BACKEND="jax", TF_CPP_MIN_LOG_LEVEL="3")


def prove_exact(installed: Installed, name: str, script: str, modules: str, **environment: str) -> None:
    """Train by a script without a kill, and with one and a second start: both must end with the same weights."""
    path = installed.work / f"{name}_script.py"
    path.write_text(script)
    lives = [[f"{name}-calm", UNTIL, 0], [f"{name}-killed", UNTIL, KILLED_IN], [f"{name}-killed", UNTIL, 0]]
    words = json.dumps([[str(word) for word in life] for life in lives])
    told = installed("python", "-c", LIVES, path, modules, words, **environment)
    ended = [json.loads(line) for line in told.splitlines()]
    assert [code for code, _ in ended] == [0, -signal.SIGKILL, 0], told
    calm, again = told_last(ended[0][1]), told_last(ended[2][1])
    assert calm[:2] == ["0", "True"]
    assert again == [str(KILLED_IN - 2), "True", calm[2]]  # the last batch before the crash was computed again
    inspect(installed, f"{name}-killed", until=UNTIL)


def told_last(output: str) -> list[str]:
    """Return the words of the last line: the batch that recovery came to, whether that is exact, a digest of the weights."""
    return output.splitlines()[-1].split()


def inspect(installed: Installed, run: str, *, until: int) -> None:
    """Look at a finished run with the commands."""
    status = json.loads(installed("tranlogs", "status", run, "--json"))
    assert status["problems"] == []
    assert [rank["watermarks"]["committed"] for rank in status["ranks"]] == [until]
    (rank,) = json.loads(installed("tranlogs", "log", run, "--json"))["ranks"]
    assert rank["records"][-1]["step"] == until
    assert f"{until}" in installed("tranlogs", "log", run, "--step", until)
    installed("tranlogs", "verify", run)
