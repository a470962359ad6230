"""Every way to break a file of a run: named by verify, and worked around or refused; never wrong state, never a signal.

The cases run in child processes (corruption.py), since a damaged file could end the process that reads it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("corruption.py")
CASES = 5000 if os.environ.get("TRANLOGS_SOAK") else 60
FIRST = int(os.environ["TRANLOGS_SEED"])


def broken_runs(folder: Path, base: str, first: int, count: int) -> tuple[list[dict[str, Any]], int]:
    """The outcomes, and the exit code of the child."""
    command = [sys.executable, str(WORKER), str(folder), base, str(first), str(count)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300 + count)
    print(child.stderr[-3000:])
    return [json.loads(line) for line in child.stdout.splitlines()], child.returncode


@pytest.mark.parametrize("base", ["closed", "killed", "resumed", "forked"])
def test_damage_is_named_and_worked_around_or_refused(memory_path: Path, base: str) -> None:
    print(f"repeat with TRANLOGS_SEED={FIRST}")
    cases, code = broken_runs(memory_path, base, FIRST, CASES)
    failed = [case for case in cases if "failed" in case]
    for case in failed:
        print(*case.values(), sep="\n  ")
    assert code == 0, f"the process ended with {code} at seed {FIRST + len(cases)}"
    assert len(cases) == CASES
    assert not failed
    outcomes = {case["outcome"].partition(" ")[0] for case in cases}
    assert "recovered" in outcomes


def test_no_bit_of_the_catalogs_meta_pages_kills_the_process(memory_path: Path) -> None:
    bits = 2 * 152 * 8
    cases, code = broken_runs(memory_path, "metas", 0, bits)
    assert code == 0, f"the process ended with {code} after {cases[-1]}"
    assert len(cases) == bits
    assert not [case for case in cases if "failed" in case]
    assert {case["outcome"] for case in cases} == {"used", "refused"}
