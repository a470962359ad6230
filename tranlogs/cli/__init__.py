"""The command line: one module for each subcommand, imported when the subcommand is called (see `app`)."""

from .app import main

__all__ = ["main"]
