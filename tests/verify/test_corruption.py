"""Every way to break a file of a run: named by verify, and worked around or refused; never wrong state, never a signal.

The cases run in child processes (corruption.py), since a damaged file could end the process that reads it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash import tally
from tests.support import campaign
from tests.verify.corruption import HARMLESS, LMDB_REGIONS, segment_region_names
from tranlogs.catalog.rows import KINDS

WORKER = Path(__file__).with_name("corruption.py")
CASES = campaign.examples(30)  # of each base
FIRST = campaign.seed()
BASES = ["closed", "killed", "forked"]
FAULTS = {  # of the report, by a word of what a case says was done
    "flipped": "a bit of a file flipped",
    "zeroed": "a range of a file zeroed, garbled, or overwritten by another page of it",
    "cut to": "a file cut or extended",
    "deleted": "a file or a folder deleted",
    "swapped": "two files swapped",
    " ago": "a file replaced by an older copy of itself",
}
FAULTS |= {"garbled": FAULTS["zeroed"], "overwritten": FAULTS["zeroed"], "extended": FAULTS["cut to"], "older": FAULTS[" ago"]}


def broken_runs(folder: Path, base: str, first: int, count: int) -> tuple[list[dict[str, Any]], int]:
    """The outcomes, and the exit code of the child."""
    command = [sys.executable, str(WORKER), str(folder), base, str(first), str(count)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300 + count)
    print(child.stderr[-3000:])
    cases = [json.loads(line) for line in child.stdout.splitlines()]
    for case in cases:
        _take_down(case)
    if child.returncode:
        tally.note("a file damaged so that its reader died", losses=1)
    return cases, child.returncode


def _take_down(case: dict[str, Any]) -> None:
    done = case.get("damage", "")
    fault = (
        "a bit of the catalog's first pages flipped"
        if "of meta page" in done
        else next((fault for word, fault in FAULTS.items() if word in done), "a file damaged")
    )
    tally.note(
        fault, losses="failed" in case, refusals=case.get("outcome", "").startswith("refused"), seconds=case.get("seconds", 0.0)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("base", [*(f"small-{base}" for base in BASES), *(campaign.in_soak(base) for base in BASES)])
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


def test_damage_of_every_region_is_named_and_worked_around(memory_path: Path) -> None:
    """Of segments with records of all kinds, and of a catalog with rows of all kinds and with pages of all kinds."""
    ways = campaign.examples(3) if campaign.is_soak() else 1  # a flipped bit, noise or zeros
    cases, code = broken_runs(memory_path, "regions", FIRST, ways)
    assert code == 0, f"the process ended with {code} after {cases[-1]}"
    failed = [case for case in cases if "failed" in case]
    for case in failed:
        print(*case.values(), sep="\n  ")
    rows = {f"row {prefix}" for prefix in (*KINDS, "request/", "record/")}
    hit = Counter(case["region"] for case in cases)
    assert hit == dict.fromkeys(segment_region_names() | LMDB_REGIONS | rows, ways)
    assert {case["region"] for case in cases if case["is_changed"]} == hit.keys()
    assert {case["region"] for case in cases if case.get("problems")} >= segment_region_names() - HARMLESS
    assert not failed
    assert not [case for case in cases if case["outcome"].startswith("refused")]


def test_no_bit_of_the_catalogs_meta_pages_kills_the_process(memory_path: Path) -> None:
    """All of them, in the gate, too: a few are fatal where the pages are not checked."""
    bits = 2 * 152 * 8
    cases, code = broken_runs(memory_path, "metas", 0, bits)
    assert code == 0, f"the process ended with {code} after {cases[-1]}"
    assert len(cases) == bits
    assert not [case for case in cases if "failed" in case]
    assert {case["outcome"] for case in cases} == {"used", "refused"}
