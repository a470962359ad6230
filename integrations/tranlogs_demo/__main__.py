"""`python -m tranlogs_demo`: the same as `tranlogs demo`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tranlogs.base.errors import TranLogsError, UsageError

from . import run_demo


def main() -> int:
    """Exit code 0: exact; 1: something differs or failed; 2: usage."""
    parser = argparse.ArgumentParser(prog="python -m tranlogs_demo", description="Train, kill, recover, prove.")
    parser.add_argument("--folder", type=Path, default=Path("demo-run"), help="where it works (default: demo-run)")
    parser.add_argument("--quick", action="store_true", help="a smaller model: under a minute")
    parser.add_argument("--seed", type=int, help="of the first weights and of the moment of the kill")
    parser.add_argument("--json", action="store_true", help="print the figures only")
    given = parser.parse_args()
    try:
        return run_demo(given.folder, quick=given.quick, seed=given.seed, as_json=given.json)
    except TranLogsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main())
