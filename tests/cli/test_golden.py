"""The words of the commands, on the run of a script that was killed.

Numbers, sizes, times and what depends on the machine are masked, and so is the width of columns; long lines are cut.
`TRANLOGS_GOLDEN=write` writes the files in `golden/` anew: look at the difference, since it is what users read.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.kills.pytorch import Death, Job
from tests.torch import scripts
from tests.torch.lab import in_child

from .conftest import Cli

pytestmark = pytest.mark.crash

ENDS = ("fine", "a problem", "wrong usage")  # by exit code
GOLDEN = Path(__file__).parent / "golden"
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
    monkeypatch.setattr("tranlogs.journal.paths.file_system_of", lambda _: "ext4")


def test_commands_on_a_run_of_a_pytorch_script(cli: Cli, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "state.pt"
    job = Job(tmp_path / "files", run, Death("batch", after=15), checkpoint_every=1000, log="gradients")
    assert in_child(lambda: job.live(scripts.epochs)) == -signal.SIGKILL
    found = "".join(
        [
            shown(cli, "status", run),
            shown(cli, "log", run, "-n", 3),
            shown(cli, "log", run, "--step", 6),
            shown(cli, "verify", run),
            shown(cli, "verify", run, "--replay"),
            shown(cli, "replay", run, "--out", out),
            shown(cli, "replay", run, "--step", 4, "--out", out),
            shown(cli, "replay", run, "--step", 999, "--out", out, "--force"),
        ]
    )
    compare("torch", mask(found, (str(run), "RUN"), (str(tmp_path), "FOLDER"), (socket.gethostname(), "HOST")))
