"""Options of a subcommand that are fields of a dataclass."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tranlogs.cli.app import load_subcommand
from tranlogs.cli.commands import monitor
from tranlogs.cli.commands.monitor import expand_option_groups


@dataclass(frozen=True)
class Limits:
    size: Annotated[int, typer.Option("--size", help="Size.")] = 3
    name: Annotated[str | None, typer.Option(help="Name.")] = None


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @expand_option_groups
    def show(what: Annotated[str, typer.Argument()], limits: Limits, loud: bool = False) -> int:
        print(what, limits.size, limits.name, loud)
        return 0

    return app


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["x"], "x 3 None False"),
        (["x", "--size", "5", "--name", "y", "--loud"], "x 5 y True"),
    ],
)
def test_the_fields_of_a_group_are_options(app: typer.Typer, arguments: list[str], shown: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.output.strip()) == (0, shown)


def test_a_wrong_value_is_refused_by_the_name_of_its_option(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["x", "--size", "many"])
    assert result.exit_code == 2
    assert "--size" in result.output


def test_no_option_of_the_monitor_is_named_twice() -> None:
    names = [name for parameter in load_subcommand("monitor").params for name in parameter.opts]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert len(inspect.signature(monitor.monitor).parameters) >= 28
