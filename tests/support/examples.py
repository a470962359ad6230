"""Examples of the documentation as a test runs them: shortened, and ended by SIGKILL at a step and some function calls."""

from __future__ import annotations

import os
import re
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from tranlogs.training.recheck_messages import NOTHING_RECORDED, PENDING, describe_not_computed

UNPROVEN = describe_not_computed(NOTHING_RECORDED)  # the kill came right behind a checkpoint
EXAMPLES = Path(__file__).parents[2] / "examples"


class Killer:
    """Ends this process after a number of steps, some function calls later.

    Args:
        steps: of this process; None for never.
        calls: calls of functions, and returns from them, behind that step.
    """

    def __init__(self, steps: int | None, calls: int) -> None:
        self.steps, self._last, self._calls = 0, steps, calls

    def count_step(self) -> None:
        """Count a step, and die in this call or soon after it if it was the last."""
        self.steps += 1
        if self.steps == self._last:
            sys.setprofile(self._count)

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        self._calls -= 1
        if self._calls < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def shortened(name: str, folder: Path, **constants: int) -> Path:
    """Write an example with other constants into a folder; return the file."""
    text = (EXAMPLES / f"{name}.py").read_text()
    for constant, value in constants.items():
        text, count = re.subn(rf"^{constant} = \d+$", f"{constant} = {value}", text, flags=re.MULTILINE)
        assert count == 1, f"{name}.py has {count} lines that set {constant}"
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


def run_example(file: Path, folder: Path) -> dict[str, Any]:
    """Run an example in a folder, where `printed` takes up what it prints; return its names."""
    os.chdir(folder)
    os.dup2(os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a file, of which a kill would drop lines
    sys.argv = [str(file)]
    return runpy.run_path(str(file), run_name="__main__")


def printed(folder: Path) -> set[str]:
    """Return the lines that the example has printed in all its processes, without those of the recovery."""
    lines = (folder / "printed").read_text().splitlines()
    others = ("fresh run", "recovered to", "starts from the beginning", "TranLogs: ", f"  {PENDING}", f"  {UNPROVEN}")
    again = " being computed again and compared with the log"  # steps of which the log has no tensors
    return {line for line in lines if not (line.startswith(others) or (line.startswith("  step") and line.endswith(again)))}
