"""The `tranlogs` command: its global options, and the list of subcommands.

A subcommand's module is imported when that subcommand is called or its help is shown, and not before: `tranlogs --help` needs
none of them, and `tranlogs status` needs no code that replays. Elsewhere the command line imports lazily only what `status`
needs for a store or a group.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from .. import __version__
from . import debugging
from .parameters import PROBLEM, USAGE, Parser, call, make_parser

SUBCOMMANDS = {  # each is the function of that name in the module of that name; the text is the first line of its docstring
    "demo": "Kill a small GPT's training, recover it, prove no bit was lost.",
    "status": "Show the newest steps of a run, and what a crash now would lose.",
    "log": "List the records of the newest timeline, or show one in full.",
    "verify": "Check every byte: checksums, chains, checkpoints, the catalog.",
    "replay": "Rebuild the state at a step without the script, as a file.",
    "rehearse": "Kill a training script, and check whether it resumes exactly.",
    "advise": "Show what log and checkpoints cost this run, and what others would.",
    "monitor": "Watch runs, and keep their logs within a budget.",
    "push": "Ship a run to a store, once.",
    "pull": "Fetch a run from a store.",
}
_EPILOG = "Exit codes: 0 fine, 1 the run has a problem that the output names, 2 wrong usage. Each command has --json."
_INTERRUPTED = 130

logging.getLogger("tranlogs").addHandler(logging.NullHandler())  # Commands print the important messages themselves.


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; the entry point of the distribution.

    Args:
        words: the words after `tranlogs`; None for those of this process.
    """
    try:
        code = _run(list(sys.argv[1:] if words is None else words))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has gone away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python flushes into the pipe once more
        code = PROBLEM
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code)


def _run(words: list[str]) -> int:
    """Run a subcommand and return its exit code."""
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    parser = _make_parser()
    options = parser.parse_args(words[:at])
    debugging.is_enabled = options.debug
    if options.debug:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    if at == len(words):
        parser.print_help()
        return USAGE
    if words[at] not in SUBCOMMANDS:
        parser.error(f"there is no command {words[at]!r}")
    function = load_subcommand(words[at])
    return call(function, make_parser(f"tranlogs {words[at]}", function), words[at + 1 :])


def load_subcommand(name: str) -> Callable[..., int]:
    """Import a subcommand and return its function."""
    found: Callable[..., int] = getattr(import_module(f".commands.{name}", __package__), name)
    return found


def _make_parser() -> Parser:
    width = max(map(len, SUBCOMMANDS))
    commands = "\n".join(f"  {name:{width}}  {text}" for name, text in SUBCOMMANDS.items())
    parser = Parser(
        "tranlogs",
        "[OPTIONS] COMMAND [ARGS]...",
        description="A write-ahead log between checkpoints: inspect runs, verify them, rebuild their state.",
        epilog=f"commands:\n{commands}\n\n{_EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="Show tracebacks and the library's log messages.")
    parser.add_argument("--version", action="version", version=f"tranlogs {__version__}", help="Show the version.")
    return parser
