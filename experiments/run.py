"""Runs experiments, one after another, and writes the report: `make experiments`.

    python experiments/run.py [NAME ...] [--quick] [--into FOLDER] [--parts PART ...]

Results go to experiments/results/NAME.json and .png, the report to docs/results.md; those of --quick, which say nothing, to
experiments/results/quick/. Each experiment is a script that also runs alone. Exit code 1: some failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from report import DOCUMENT, EXPERIMENTS, HERE, RESULTS, write_report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *EXPERIMENTS], help="which (default: all that this machine can take)")
    parser.add_argument("--quick", action="store_true", help="checks the scripts, not the claims")
    parser.add_argument("--parts", nargs="*", default=(), help="parts of an experiment that has parts (default: all)")
    parser.add_argument("--into", type=Path, help="folder for results and report")
    arguments = parser.parse_args()
    into = arguments.into or (RESULTS / "quick" if arguments.quick else None)
    results, document = (RESULTS, DOCUMENT) if into is None else (into, into / "results.md")
    failed = []
    for experiment in [EXPERIMENTS[name] for name in arguments.names] or EXPERIMENTS.values():
        if not arguments.names and experiment.missing:
            print(f"==== {experiment.name}: left out, it needs {' and '.join(experiment.missing)}", flush=True)
            continue
        print(f"==== {experiment.name}: {experiment.title}", flush=True)
        command = [sys.executable, str(HERE / experiment.script), *arguments.parts, *["--quick"] * arguments.quick]
        if subprocess.run([*command, "--out", str(results / f"{experiment.name}.json")]).returncode:
            failed.append(experiment.name)
    write_report(results, document)
    if failed:
        print(f"failed: {', '.join(failed)}; the report has what they said before, if anything", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
