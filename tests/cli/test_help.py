from __future__ import annotations

import subprocess
import sys

import pytest

import tranlogs

from .conftest import Cli

COMMANDS = ("demo", "status", "log", "verify", "replay", "export", "import", "repair", "monitor", "push", "pull", "store")
HEAVY = ("torch", "tensorflow", "keras", "numpy", "lmdb", "rich", "zstandard", "xxhash")


def test_help_names_every_command_and_the_exit_codes(cli: Cli) -> None:
    called = cli("--help")
    assert called.code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in called.out
    assert "Exit codes: 0 fine, 1 the run has a problem" in called.out
    assert "..." not in called.out.removeprefix("Usage: tranlogs [OPTIONS] COMMAND [ARGS]...")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_and_json(cli: Cli, name: str) -> None:
    called = cli(*(["store", "check"] if name == "store" else [name]), "--help")
    assert called.code == 0
    assert "--json" in called.out


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"tranlogs {tranlogs.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["replay", "--help"]])
def test_help_imports_nothing_slow(arguments: list[str]) -> None:
    code = f"""
import sys
from tranlogs.cli import app
try:
    app({arguments})
except SystemExit:
    pass
print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    "arguments", [["status"], ["nothing"], ["replay", "run"], ["log", "run", "--step", "x"], ["--nothing"]]
)
def test_wrong_usage_exits_with_2(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments).code == 2
