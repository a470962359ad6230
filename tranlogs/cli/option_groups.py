"""Groups of options: a subcommand takes a dataclass, and each of its fields is an option of the command line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def expand_option_groups(function: Callable[..., int]) -> Callable[..., int]:
    """Decorate a subcommand: replace each parameter that is a dataclass by the fields of that dataclass.

    A field has an `Annotated` type with a `typer.Option`, like a parameter of a subcommand. Its name must be unique in the
    subcommand.
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind) and isinstance(kind, type):
            groups[parameter.name] = kind
            parameters += _make_parameters(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def run(**arguments: Any) -> int:
        for name, kind in groups.items():
            arguments[name] = kind(**{field.name: arguments.pop(field.name) for field in fields(kind)})
        return function(**arguments)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads both attributes
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _make_parameters(kind: type[Any]) -> list[inspect.Parameter]:
    """Return a parameter for each field of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
