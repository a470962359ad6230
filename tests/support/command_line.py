"""The command line called in this process."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest

from tranlogs.cli import main


def call_tranlogs(*words: object) -> tuple[int, str]:
    """Call `tranlogs` with these arguments; return its exit code and what it prints to stdout."""
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as exit:
        main([str(word) for word in words])
    return int(exit.value.code or 0), out.getvalue()
