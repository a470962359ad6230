"""What the subcommands share: RUN and --json, exit codes, and that an error is one line and never a traceback."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..base.errors import TranLogsError, UsageError
from ..retention.keep_policy import RetentionPolicy

FINE, PROBLEM, USAGE = 0, 1, 2

Run = Annotated[
    Path, typer.Argument(metavar="RUN", show_default=False, help="Folder of the run, or of one of its ranks (RUN/rank0).")
]
Optimizers = Annotated[
    list[str] | None,
    typer.Option(
        "--optimizer",
        metavar="module:Class",
        show_default=False,
        help="Class of an optimizer that is not torch's own (NAME=module:Class if several).",
    ),
]
StoreCheckpoints = Annotated[
    str, typer.Option(metavar="N|all", help="Checkpoints that stay in the store, and the log behind the oldest of them.")
]
TakeOver = Annotated[bool, typer.Option("--take-over", help="Go on with what another machine has shipped of this run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

is_debugging = False  # --debug


def command(function: Callable[..., int]) -> Callable[..., None]:
    """A subcommand of a function that returns its exit code."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            code = function(*args, **kwargs)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if is_debugging:
                raise
            code = _tell(error, as_json=bool(kwargs.get("as_json")))
        raise typer.Exit(code)

    return run


def kept_there(text: str) -> RetentionPolicy:
    """Of --store-checkpoints.

    Raises:
        UsageError: it is neither a number from 1 on nor "all".
    """
    from ..retention.keep_policy import KeepAll, KeepLatest

    if text == "all":
        return KeepAll()
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f'--store-checkpoints {text!r}: give a number from 1 on, or "all"')
    return KeepLatest(int(text))


def show_json(content: Any) -> None:
    """Print a value as JSON; whatever JSON lacks is described."""
    import json

    from .output.json_values import plain

    typer.echo(json.dumps(plain(content), indent=2, allow_nan=False))


def _tell(error: Exception, *, as_json: bool) -> int:
    kind = type(error).__name__
    if isinstance(error, TranLogsError):
        message = str(error)
    elif isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    else:
        message = f"this should not have happened ({kind}: {error}). `tranlogs --debug ...` shows where"
    print(f"tranlogs: {message}", file=sys.stderr)
    if as_json:
        show_json({"error": {"kind": kind, "message": message}})
    return USAGE if isinstance(error, UsageError) else PROBLEM
