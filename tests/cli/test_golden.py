"""The words of the commands, on runs of public scripts of several kinds, most of which were killed.

Numbers, sizes, times and what depends on the machine are masked, and so is the width of columns; long lines are cut.
`TRANLOGS_GOLDEN=write` writes the files in `golden/` anew: look at the difference, since it is what users read.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.keras.conftest import find_lab
from tests.keras.lab import THREADS, Lab, Labs
from tests.keras.proof import run_whole
from tests.kills.pytorch import Death, Job, Script
from tests.public.torch.scripts import dcgan, mnist, mnist_rnn, word_language_model
from tests.torch.lab import in_child
from tests.trainers import lightning_child

from .conftest import Cli

pytestmark = pytest.mark.crash

ENDS = ("fine", "a problem", "wrong usage")  # by exit code
GOLDEN = Path(__file__).parent / "golden"
CALL_EACH = """
import shlex, sys
from tranlogs.cli import app
for line in sys.argv[1:]:
    print("$", line, flush=True)
    try:
        app(shlex.split(line))
    except SystemExit as end:
        print("ends with", ("fine", "a problem", "wrong usage")[end.code or 0], flush=True)
"""
_MASKS = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"\b[0-9a-f]{16}\b", "DIGEST"),
    (r"\b\d{8}-[0-9a-f]+\b|\b[0-9a-f]{8,}\.seg\b|\S+\.seg\b", "SEGMENT"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME"),
    (r"(cpu_capability) (NO AVX|\w+)", r"\1 CPU"),
    (r"(machine) \w+", r"\1 MACHINE"),
    (r"-?\d+(,\d{3})*(\.\d+)?(e[-+]?\d+)?([.+]\w+)*", "#"),
    (r"# (B|KiB|MiB|GiB)\b", "SIZE"),
    (r"# (us|ms|s|min|h)\b", "SECONDS"),
    (r"\b(raw|zero|high#|nonzero)\b", "CODEC"),
    (r"[─━]+", "-"),
    (r"\n +# +ready [^\n]*", ""),  # a file that is prepared behind training
    (r"  +", "  "),
    (r"(-  )+-", "-"),
    (r"(?m)^(.{160}).+$", r"\1 ..."),  # the inside of auxiliary state is not what this test is about
)


def mask(text: str, *places: tuple[str, str]) -> str:
    """Return a command's output without what differs from machine to machine."""
    for place, name in places:
        text = text.replace(place, name)
    for pattern, replacement in _MASKS:
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip() + "\n"


def compare(name: str, found: str) -> None:
    """Compare an output with the one in `golden/`."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("TRANLOGS_GOLDEN") == "write":
        path.write_text(found)
    assert found == path.read_text(), f"{path} differs: is the new output as good? Then write it with TRANLOGS_GOLDEN=write"


def shown(cli: Cli, *arguments: object) -> str:
    """Return a command, its output and its exit code."""
    called = cli(*arguments)
    return f"$ {' '.join(map(str, arguments))}\n{called.out}{called.err}ends with {ENDS[called.code]}\n\n"


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run in memory look like one on a disk."""
    monkeypatch.setattr("tranlogs.journal.file_system.file_system_of", lambda _: "ext4")


@pytest.fixture(scope="module")
def keras_lab(keras_labs: Labs) -> Lab:
    return find_lab(keras_labs, "torch")


def test_commands_on_a_run_of_a_pytorch_script(cli: Cli, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "state.pt"
    job = Job(tmp_path / "files", run, Death("batch", after=22), checkpoint_every=1000)
    assert in_child(lambda: job.live(mnist.train)) == -signal.SIGKILL
    found = "".join(
        [
            shown(cli, "status", run),
            shown(cli, "log", run, "-n", 3),
            shown(cli, "log", run, "--step", 16),
            shown(cli, "verify", run),
            shown(cli, "verify", run, "--replay"),
            shown(cli, "replay", run, "--out", out),
            shown(cli, "replay", run, "--step", 8, "--out", out),
            shown(cli, "replay", run, "--step", 999, "--out", out, "--force"),
        ]
    )
    compare("torch", mask(found, (str(run), "RUN"), (str(tmp_path), "FOLDER"), (socket.gethostname(), "HOST")))


@pytest.mark.sampled(0)
def test_commands_on_a_run_of_a_keras_script(cli: Cli, keras_lab: Lab, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "state.weights.h5"
    assert keras_lab.run("fit", run=str(run), die=["batch", 17], options={"checkpoint_every": 1000}).was_killed
    found = "".join(
        [
            shown(cli, "status", run),
            shown(cli, "log", run, "-n", 10),
            shown(cli, "log", run, "--step", 10),
            shown(cli, "verify", run),
        ]
    )
    lines = [f"verify {run} --replay", f"replay {run} --out {out}", f"replay {run} --out {out}", f"replay {run} --out {out}.pt"]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "KERAS_BACKEND")}
    environment |= THREADS  # replay computes with the threads that the run had
    done = subprocess.run(
        [sys.executable, "-c", CALL_EACH, *lines], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    compare("keras", mask(found + done.stdout, (str(run), "RUN"), (str(tmp_path), "FOLDER"), (socket.gethostname(), "HOST")))


def train_by_lightning(job: Job) -> None:
    lightning_child.train(0, str(job.run), str(job.folder), [[0, "step", 11]], settings={"checkpoint_every": 1000})


KINDS: dict[str, tuple[Script, dict[str, Any]]] = {
    "gan": (dcgan.train, {"after": 14}),
    "epochs": (mnist_rnn.train, {"after": 14}),
    "weights": (word_language_model.train, {"after": 30, "log": "weights"}),
    "finished": (dcgan.train, {}),
    "lightning": (train_by_lightning, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_commands_on_runs_of_all_kinds(kind: str, cli: Cli, tmp_path: Path) -> None:
    run, out, (script, options) = tmp_path / "run", tmp_path / "state.pt", KINDS[kind]
    death = Death("batch", after=options["after"]) if "after" in options else None
    job = Job(tmp_path / "files", run, death, checkpoint_every=1000, log=options.get("log", "gradients"))
    is_killed = death is not None or kind == "lightning"
    assert in_child(lambda: job.live(script)) == (-signal.SIGKILL if is_killed else 0)
    found = "".join(
        [
            shown(cli, "status", run),
            shown(cli, "log", run, "-n", 6),
            shown(cli, "verify", run, "--replay"),
            shown(cli, "replay", run, "--out", out),
        ]
    )
    compare(kind, mask(found, (str(run), "RUN"), (str(tmp_path), "FOLDER"), (socket.gethostname(), "HOST")))


def test_commands_on_a_run_of_a_fit_with_callbacks(cli: Cli, keras_lab: Lab, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_whole(keras_lab, "tests.public.keras.scripts.many_callbacks:train", tmp_path)
    found = "".join([shown(cli, "status", run), shown(cli, "log", run, "-n", 6), shown(cli, "verify", run)])
    compare("callbacks", mask(found, (str(run), "RUN"), (str(tmp_path), "FOLDER"), (socket.gethostname(), "HOST")))
