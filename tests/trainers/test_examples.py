"""The examples of the trainers do what they say: run, killed, run again, they go on; one process after the other."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainers.conftest import ROOT, environment

pytestmark = pytest.mark.crash


@pytest.mark.parametrize(
    ("example", "package", "sign"),
    [
        ("huggingface_trainer", "transformers", "'loss':"),
        ("lightning_trainer", "lightning", "epoch 1:"),
        ("accelerate_loop", "accelerate", "epoch 1:"),
    ],
)
def test_example_goes_on_after_sigkill(tmp_path: Path, example: str, package: str, sign: str) -> None:
    if importlib.util.find_spec(package) is None:
        if os.environ.get("TRANLOGS_REQUIRE_ALL") == "1":
            pytest.fail(f"TRANLOGS_REQUIRE_ALL=1, and {package} is not installed")
        pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-u", str(ROOT / "examples" / f"{example}.py")]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        told = next((line for line in first.stdout if sign in line), None)
        first.kill()
    assert told is not None, "the example ended before it was to be killed"
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout is not None
        found = next((m for line in second.stdout if (m := re.search(r"recovered to step (\d+) \(.* bit-exact\)", line))), None)
        second.kill()
    assert found is not None
    assert int(found[1]) > 0
