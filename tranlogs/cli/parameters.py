"""Parameters of the subcommands, and the parsers that are made of them.

A subcommand is a function. Each of its parameters has an `Annotated` type with an `Argument` or an `Option`. The docstring is
the help.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_origin, get_type_hints

FINE, PROBLEM, USAGE = 0, 1, 2  # exit codes

_METAVARS = {int: "N", float: "X", Path: "PATH"}


class Argument:
    """A positional argument. If its type is a list, it takes one value or more."""

    def __init__(self, *, metavar: str, help: str) -> None:
        self.metavar, self.help = metavar, help


class Option:
    """An option. If its type is a list, it can be given several times.

    Args:
        names: names on the command line; by default that of the parameter.
        help: what it does. The default value is added, unless it is None or False.
        metavar: word for its value.
        min: least value.
    """

    def __init__(self, *names: str, help: str, metavar: str = "", min: int | None = None) -> None:
        self.names, self.help, self.metavar, self.min = names, help, metavar, min


class Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line."""

    def __init__(self, name: str, usage: str, **options: Any) -> None:
        super().__init__(prog=name, usage=f"{name} {usage}", allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"tranlogs: {message}; see `{self.prog} --help`\n")


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    annotation: Any
    default: Any  # MISSING if there is none


def make_parser(name: str, function: Callable[..., Any]) -> Parser:
    """Return the parser of a subcommand."""
    parameters = list(_list_parameters(function))
    found = [(one, *_read_annotation(one.annotation)) for one in parameters]
    places = [spec.metavar for _, _, spec in found if isinstance(spec, Argument)]
    parser = Parser(name, " ".join(["[OPTIONS]", *places]), description=inspect.getdoc(function))
    for parameter, kind, spec in found:
        _add(parser, parameter, kind, spec)
    return parser


def call(function: Callable[..., int], parser: Parser, words: list[str]) -> int:
    """Call a subcommand with the words of a command line."""
    parse = parser.parse_args if "--" in words else parser.parse_intermixed_args
    return function(**vars(parse(words)))


def _list_parameters(function: Callable[..., Any]) -> Iterator[_Parameter]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        yield _Parameter(name, hints[name], MISSING if parameter.default is parameter.empty else parameter.default)


def _read_annotation(annotation: Any) -> tuple[Any, Argument | Option]:
    """Return the type of a parameter without None, and its `Argument` or `Option`."""
    if get_origin(annotation) is not Annotated:  # Python 3.10 adds "or None" to a parameter whose default is None
        annotation = next(one for one in get_args(annotation) if get_origin(one) is Annotated)
    kind, spec = get_args(annotation)
    if type(None) in get_args(kind):
        kind = next(one for one in get_args(kind) if one is not type(None))
    return kind, spec


def _add(parser: Parser, parameter: _Parameter, kind: Any, spec: Argument | Option) -> None:
    is_list = get_origin(kind) is list
    value = get_args(kind)[0] if is_list else kind
    text = spec.help.replace("%", "%%")
    if isinstance(spec, Argument):
        parser.add_argument(parameter.name, metavar=spec.metavar, type=value, nargs="+" if is_list else None, help=text)
        return
    names = spec.names or (f"--{parameter.name.replace('_', '-')}",)
    if value is bool:
        parser.add_argument(*names, dest=parameter.name, action="store_true", help=text)
        return
    parser.add_argument(
        *names,
        dest=parameter.name,
        metavar=spec.metavar or _METAVARS.get(value, "TEXT"),
        type=value if spec.min is None else _at_least(spec.min),
        action="append" if is_list else "store",
        required=parameter.default is MISSING,
        default=None if parameter.default is MISSING else parameter.default,
        help=text if parameter.default in (None, MISSING) else f"{text} (default: {parameter.default})",
    )


def _at_least(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
        return number

    convert.__name__ = "int"  # in the message about a text that is no number
    return convert
