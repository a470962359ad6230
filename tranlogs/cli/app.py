"""The `tranlogs` command: its global options, and the list of subcommands.

A subcommand's module is imported when that subcommand is called or its help is shown, and not before: `tranlogs --help` needs
none of them, and `tranlogs status` needs no code that replays. Elsewhere the command line imports lazily only what `status`
needs for a store or a group.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from .. import __version__
from . import debugging


class Subcommand(NamedTuple):
    """Reference to a subcommand, and its description in `tranlogs --help`.

    Attributes:
        module: name of the module in `commands`.
        attribute: name of the function, or of the group of further subcommands.
        help: one line, equal to the first line of the function's docstring.
    """

    module: str
    attribute: str
    help: str


SUBCOMMANDS = {
    "demo": Subcommand("demo", "demo", "Kill a small GPT's training, recover it, prove no bit was lost."),
    "status": Subcommand("status", "status", "Show the newest steps of a run, and what a crash now would lose."),
    "log": Subcommand("log", "log", "List the records of the newest timeline, or show one in full."),
    "verify": Subcommand("verify", "verify", "Check every byte: checksums, chains, checkpoints, the catalog."),
    "replay": Subcommand("replay", "replay", "Rebuild the state at a step without the script, as a file."),
    "rehearse": Subcommand("rehearse", "rehearse", "Kill a training script, and check whether it resumes exactly."),
    "monitor": Subcommand("monitor", "monitor", "Watch runs, and keep their logs within a budget."),
    "push": Subcommand("push", "push", "Ship a run to a store, once."),
    "pull": Subcommand("pull", "pull", "Fetch a run from a store."),
}


class LazyGroup(TyperGroup):
    """A group of subcommands that imports a subcommand's module when the subcommand is looked up to be called.

    Until then, each name refers to an empty command with the name and the one-line help.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({name: TyperCommand(name, short_help=entry.help) for name, entry in SUBCOMMANDS.items()})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the subcommand and its arguments, after importing the subcommand."""
        name = args[0]
        if name in SUBCOMMANDS:
            self.commands[name] = load_subcommand(name)
        return super().resolve_command(ctx, args)


def load_subcommand(name: str) -> Any:
    """Import a subcommand, and return it as Typer runs it."""
    entry = SUBCOMMANDS[name]
    found = getattr(import_module(f".commands.{entry.module}", __package__), entry.attribute)
    if isinstance(found, typer.Typer):
        return get_command(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(found)
    return get_command(alone)


app = typer.Typer(
    name="tranlogs",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 fine, 1 the run has a problem that the output names, 2 wrong usage. Each command has --json.",
)

logging.getLogger("tranlogs").addHandler(logging.NullHandler())  # Commands print the important messages themselves.


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"tranlogs {__version__}")
        raise typer.Exit


@app.callback()
def tranlogs(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and the library's log messages.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """A write-ahead log between checkpoints: inspect runs, verify them, rebuild their state."""
    debugging.is_enabled = debug
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


def main() -> None:
    """Run the command line; the entry point of the distribution."""
    app()
