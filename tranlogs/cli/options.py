"""Parameters that several subcommands share, and the wrapper that turns an error into one line."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from ..base.errors import TranLogsError, UsageError
from ..retention.keep_policy import KeepAll, KeepLatest, RetentionPolicy
from . import debugging
from .parameters import PROBLEM, USAGE, Argument, Option
from .screen import print_json

Run = Annotated[Path, Argument(metavar="RUN", help="Folder of the run, or of one of its ranks (RUN/rank0).")]
RunOrUrl = Annotated[
    str,
    Argument(metavar="RUN|URL", help="Folder of the run or a rank, or URL of a store."),
]
Optimizers = Annotated[
    list[str] | None,
    Option(
        "--optimizer",
        metavar="module:Class",
        help="Class of an optimizer that is not part of torch or Keras (NAME=module:Class for one of several).",
    ),
]
StoreCheckpoints = Annotated[
    str,
    Option(metavar="N|all", help="Number of checkpoints to keep in the store, with the log after the oldest of them."),
]
TakeOver = Annotated[bool, Option("--take-over", help="Continue after what another machine has shipped of this run.")]
Json = Annotated[bool, Option("--json", help="Print JSON, for programs.")]


def command(function: Callable[..., int]) -> Callable[..., int]:
    """Make a subcommand of a function that returns its exit code.

    An error becomes one line on stderr, and with --json an object on stdout. With --debug it is raised.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> int:
        try:
            return function(*args, **kwargs)
        except BrokenPipeError:
            raise
        except Exception as error:
            if debugging.is_enabled:
                raise
            return _report(error, as_json=bool(kwargs.get("as_json")))

    return run


def parse_store_checkpoints(text: str, what: str = "--store-checkpoints") -> RetentionPolicy:
    """Return the retention policy that a number of checkpoints asks for. `what` is the option's name, for the error message.

    Raises:
        UsageError: the text is neither a number from 1 on nor "all".
    """
    if text == "all":
        return KeepAll()
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f'{what} must be a number from 1 on or "all", got {text!r}')
    return KeepLatest(int(text))


def _report(error: Exception, *, as_json: bool) -> int:
    """Print an error; return the exit code."""
    kind = type(error).__name__
    if isinstance(error, TranLogsError):
        message = str(error)
    elif isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    else:
        message = f"unexpected error ({kind}: {error}); run `tranlogs --debug ...` to see where"
    print(f"tranlogs: {message}", file=sys.stderr)
    if as_json:
        print_json({"error": {"kind": kind, "message": message}})
    return USAGE if isinstance(error, UsageError) else PROBLEM
