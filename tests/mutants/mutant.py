"""One seeded fault of product code, and the check of whether the tests find it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, as a replacement of some lines of one file.

    Attributes:
        name: what the fault is, in a few words: "the head is written before its payload".
        path: the file, below the repository's root.
        before: the text that is replaced; it occurs in the file exactly once.
        after: the text with the fault.
        tests: the tests that must find it, as pytest takes them: "tests/log/test_scan.py::test_torn_tail". At least one fails.
    """

    name: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]

    def mutated(self) -> str:
        """Return the file's text with the fault.

        Raises:
            ValueError: `before` does not occur exactly once.
        """
        text = (ROOT / self.path).read_text()
        if text.count(self.before) != 1:
            raise ValueError(f"{self.path}: the text that {self.name!r} replaces occurs {text.count(self.before)} times")
        return text.replace(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said of a mutant.

    Attributes:
        is_found: True if a test failed.
        words: the first failed test, or why the mutant does not count as found.
    """

    is_found: bool
    words: str


def judge(mutant: Mutant) -> Verdict:
    """Run a mutant's tests on a copy of the checkout that has its fault."""
    mutated = mutant.mutated()
    with tempfile.TemporaryDirectory(prefix="tranlogs-mutant-") as folder:
        copy = Path(folder, "tree")
        _copy_checkout(copy)
        (copy / mutant.path).write_text(mutated)
        try:
            return _verdict(_run_tests(copy, mutant.tests))
        except subprocess.TimeoutExpired:
            return Verdict(False, f"its tests ran longer than {TIMEOUT_SECONDS} s")


def _copy_checkout(target: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _run_tests(tree: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    sources = os.pathsep.join(map(str, (tree, tree / "integrations", tree / "monitor")))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": sources, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )


def _verdict(done: subprocess.CompletedProcess[str]) -> Verdict:
    """Only a failed test finds a fault: pytest's status 1. Errors of collection and the like do not count."""
    if done.returncode == 0:
        return Verdict(False, "all of its tests passed")
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    if done.returncode == 1 and failed:
        return Verdict(True, failed[0].removeprefix("FAILED ").partition(" - ")[0])
    return Verdict(False, f"pytest ended with {done.returncode}: {' | '.join(done.stdout.splitlines()[-3:])}")
