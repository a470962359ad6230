"""The `tranlogs` command: its subcommands and global options."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from .. import __version__
from . import options
from .commands.demo import demo
from .commands.export import export
from .commands.importing import import_
from .commands.log import log
from .commands.monitor import monitor
from .commands.pull import pull
from .commands.push import push
from .commands.repair import repair
from .commands.replay import replay
from .commands.status import status
from .commands.store import store
from .commands.verify import verify

app = typer.Typer(
    name="tranlogs",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 fine, 1 the run has a problem that the output names, 2 wrong usage. Each command has --json.",
)
for _function in (demo, status, log, verify, replay, export, import_, repair, monitor, push, pull):
    app.command("import" if _function is import_ else None)(_function)
app.add_typer(store)

logging.getLogger("tranlogs").addHandler(logging.NullHandler())  # what matters is in the commands' own output


def _version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"tranlogs {__version__}")
        raise typer.Exit


@app.callback()
def tranlogs(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and what the library logs.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """A write-ahead log between checkpoints: look at runs, verify them, rebuild their state."""
    options.is_debugging = debug
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


def main() -> None:
    """The entry point."""
    app()
