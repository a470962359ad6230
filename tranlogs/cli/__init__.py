"""The command line: one file a subcommand. What is slow to import is imported where it is used."""

from .app import app, main

__all__ = ["app", "main"]
