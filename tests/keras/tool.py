"""The command line in a job of a lab: Keras is imported there already, which takes a process of its own several seconds."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from tests.keras.lab import Lab


def call(lab: Lab, *arguments: object) -> tuple[int, str, str]:
    """Return the exit code of `tranlogs` with these arguments, and what it printed on stdout and on stderr."""
    code, out, err = lab.value("tests.keras.tool.run_tranlogs", words=[str(argument) for argument in arguments])
    return code, out, err


def ask(lab: Lab, *arguments: object) -> dict[str, Any]:
    """Return what `tranlogs ... --json` says; it must not fail."""
    code, out, err = call(lab, *arguments, "--json")
    assert code == 0, err[-3000:]
    found: dict[str, Any] = json.loads(out)
    return found


def run_tranlogs(words: list[str]) -> tuple[int, str, str]:
    """Run `tranlogs` in this process."""
    from tranlogs.cli import app

    code: int | str | None = 0
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            app(words, prog_name="tranlogs")
        except SystemExit as end:
            code = end.code
    return int(code or 0), out.getvalue(), err.getvalue()


def processes(run: str = "") -> tuple[int, int]:
    """Return the server and the process of this job."""
    return os.getppid(), os.getpid()
