"""The examples do what they say: killed and started again, they go on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.crash
def test_minimal_example_goes_on_after_sigkill(tmp_path: Path) -> None:
    command = [sys.executable, "-u", str(_EXAMPLES / "pytorch_minimal.py")]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # two would wait for each other on a busy machine
    with subprocess.Popen(command, cwd=tmp_path, env=one_thread, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        told = [line for _, line in zip(range(2), first.stdout, strict=False)]
        first.kill()
    forecast = r"fresh run: step 0 \(about .* of log a step; next checkpoint after about [\d,]+ steps \(.* of log\)\)\n"
    assert re.fullmatch(forecast, told[0]), told[0]
    assert told[1].startswith("batch 100: loss ")
    with subprocess.Popen(command, cwd=tmp_path, env=one_thread, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None
        line = second.stdout.readline()
        second.kill()
    found = re.match(r"recovered to step (\d+) \(.* bit-exact\)", line)
    assert found is not None, line
    assert int(found[1]) >= 99  # the 100th batch told of itself before its unit was complete
