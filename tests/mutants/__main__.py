"""Seed faults into product code, one at a time, and check that the tests find each: `python -m tests.mutants [WORDS]`.

With words, only mutants whose names contain them are tried. The exit status is 1 if a mutant was not found.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.mutants import core, crash, distributed, keras, torch
from tests.mutants.mutant import Mutant, Verdict, judge

WORKERS = 2
MUTANTS: tuple[Mutant, ...] = (
    *core.MUTANTS,
    *crash.MUTANTS,
    *torch.MUTANTS,
    *keras.MUTANTS,
    *distributed.MUTANTS,
)


def main() -> int:
    """Try the mutants that the command line names, and print a table."""
    words = " ".join(sys.argv[1:])
    chosen = [mutant for mutant in MUTANTS if words in mutant.name]
    began = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as pool:
        verdicts = list(pool.map(_judge_aloud, chosen))
    found = sum(verdict.is_found for verdict in verdicts)
    print(f"{found} of {len(chosen)} found in {time.monotonic() - began:.0f} s")
    return 0 if found == len(chosen) else 1


def _judge_aloud(mutant: Mutant) -> Verdict:
    verdict = judge(mutant)
    print(f"| {mutant.name} | {'found' if verdict.is_found else 'NOT FOUND'} | {verdict.words} |", flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
