from __future__ import annotations

import subprocess
import sys

import pytest

import tranlogs
from tranlogs.cli.app import SUBCOMMANDS, load_subcommand

from .conftest import Cli

COMMANDS = ("demo", "status", "log", "verify", "replay", "rehearse", "monitor", "push", "pull")
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
CLIENTS = ("alluxio", "fsspec", "requests", "starlette", "uvicorn")
HEAVY = (*FRAMEWORKS, *CLIENTS, "numpy", "lmdb", "rich", "xxhash")


def test_help_names_every_command_and_the_exit_codes(cli: Cli) -> None:
    called = cli("--help")
    assert called.code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in called.out
    assert "Exit codes: 0 fine, 1 the run has a problem" in called.out
    assert "..." not in called.out.removeprefix("Usage: tranlogs [OPTIONS] COMMAND [ARGS]...")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_and_json(cli: Cli, name: str) -> None:
    called = cli(name, "--help")
    assert called.code == 0
    assert "--json" in called.out


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"tranlogs {tranlogs.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_one_line_help_is_the_commands_own(name: str) -> None:
    assert tuple(SUBCOMMANDS) == COMMANDS
    assert SUBCOMMANDS[name].help == load_subcommand(name).help.splitlines()[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "slow"),
    [
        (["--help"], HEAVY),
        (["--version"], HEAVY),
        (["status", "--help"], FRAMEWORKS),
        (["status", "no/such/run"], (*FRAMEWORKS, *CLIENTS, "tranlogs.shipping")),
        (["replay", "--help"], (*FRAMEWORKS, *CLIENTS, "tranlogs.shipping")),
    ],
)
def test_a_command_imports_only_what_it_needs(arguments: list[str], slow: tuple[str, ...]) -> None:
    code = f"""
import sys
from tranlogs.cli import app
try:
    app({arguments})
except SystemExit:
    pass
print([name for name in {slow} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *shown, imported = done.stdout.splitlines()
    assert shown or done.stderr
    assert imported == "[]"


@pytest.mark.parametrize(
    "arguments", [["status"], ["nothing"], ["replay", "run"], ["log", "run", "--step", "x"], ["--nothing"]]
)
def test_wrong_usage_exits_with_2(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments).code == 2
