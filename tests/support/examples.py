"""Examples of the documentation as scripts of a Job: shortened, and with a place behind each line that they print."""

from __future__ import annotations

import builtins
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

from tests.kills.job import Job

EXAMPLES = Path(__file__).parents[2] / "examples"


def shortened(name: str, folder: Path, **constants: int) -> Path:
    """Write an example with other constants into a folder; return the file."""
    text = (EXAMPLES / f"{name}.py").read_text()
    for constant, value in constants.items():
        text, count = re.subn(rf"^{constant} = \d+$", f"{constant} = {value}", text, flags=re.MULTILINE)
        assert count == 1, f"{name}.py has {count} lines that set {constant}"
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


def run_example(job: Job, file: str, *signs: str) -> dict[str, Any]:
    """Run an example, which may die behind each line that has one of these words; return its names."""
    warnings.resetwarnings()  # errors in tests, and not in a script
    plain_print = builtins.print

    def told(*what: Any, **options: Any) -> None:
        plain_print(*what, **options)
        line = " ".join(map(str, what))
        job.print(line)
        for sign in signs:
            if sign in line:
                job.at(sign)

    builtins.print = told
    return runpy.run_path(file, run_name="__main__")
