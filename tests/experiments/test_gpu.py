"""The GPU kit, tried on the CPU with a tiny model: its parts run, and its JSON has what they measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_KIT = Path(__file__).parents[2] / "experiments" / "gpu.py"


def test_the_kit_measures_and_writes_its_json(tmp_path: Path) -> None:
    out, parts = tmp_path / "gpu.json", ["machine", "checkpoint", "tests"]
    command = [sys.executable, str(_KIT), "--cpu", "--quick", "--folder", str(tmp_path), "--out", str(out), "--parts", *parts]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found) == parts
    assert found["machine"]["disk_mb_per_s"] > 0
    assert len(found["checkpoint"]["stall_ms"]) == 4
    assert "left out" in found["tests"]
    assert list(tmp_path.iterdir()) == [out], "its folders are deleted"


def test_the_kit_refuses_a_machine_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, str(_KIT), "--out", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    assert "no CUDA GPU was found" in done.stderr
