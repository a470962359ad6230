"""What all experiments share: command line, folder, child processes, and results with their circumstances.

The circumstances of results are machine, versions, commit, and how busy others kept the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import tranlogs

# Recovery is measured up to the newest boundary, without the unit that a script computes again.
os.environ.setdefault("TRANLOGS_RECHECK", "0")

RESULTS = Path(__file__).resolve().parent / "results"
_PACKAGES = ("torch", "keras", "tensorflow-cpu", "tensorflow", "jax", "numpy", "scikit-learn", "lmdb", "matplotlib")
_TICK = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)  # idle and iowait in a line of /proc/stat; the guest times behind `steal` are in the first ones already


class Circumstances:
    """Made before an experiment begins; its `as_dict` is taken when it is over."""

    def __init__(self) -> None:
        self._at, self._commit = datetime.now(timezone.utc), _commit()
        self._start, self._others = time.monotonic(), _others_seconds()

    def as_dict(self) -> dict[str, Any]:
        """Return them for the JSON; `others_busy`: processors that others kept busy in the mean, or a hypervisor withheld."""
        seconds = time.monotonic() - self._start
        return {
            "at": self._at.isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
            "commit": self._commit,
            "others_busy": round(max(0.0, _others_seconds() - self._others) / seconds, 2),
            "machine": {
                "processor": _processor(),
                "cpus": os.cpu_count(),
                "system": f"{platform.system()} {platform.release()}",
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            },
            "versions": _versions(),
        }


def command_line(about: str | None, out: str) -> argparse.ArgumentParser:
    """Return a parser that knows `--quick` and `--out`, of a script with some docstring and results of some name."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small and short: checks the script, not the claims")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{out}.json")
    return parser


def take(about: str | None, out: str, measure: Callable[..., dict[str, Any]], draw: Callable[..., None] | None = None) -> None:
    """Take a whole experiment as the command line says: `measure(quick=...)`, its results, and a picture of them."""
    arguments = command_line(about, out).parse_args()
    begun = Circumstances()
    results = measure(quick=arguments.quick)
    write_results(arguments.out, results, begun)
    if draw is not None:
        draw(arguments.out.with_suffix(".png"), results)


def measured_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder on the disk that is measured: TRANLOGS_BENCH_DIR, or where temporary files are."""
    return tempfile.TemporaryDirectory(dir=os.environ.get("TRANLOGS_BENCH_DIR"))


class Child:
    """A process of its own that runs a function, which is given the other end of the pipe, and `given`.

    With `is_fork`, this process is forked, which must have one thread; otherwise Python starts anew, and imports again.
    """

    def __init__(self, work: Callable[..., None], *given: Any, is_fork: bool = False) -> None:
        context: Any = multiprocessing.get_context("fork" if is_fork else "spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, *given))
        self.process.start()
        theirs.close()

    def receive(self) -> Any:
        """Return what the function sends next; None if the process ends before."""
        try:
            return self.pipe.recv()
        except EOFError:
            return None

    def join(self) -> None:
        """Wait until the process has ended, by itself or by SIGKILL."""
        self.process.join()
        if self.process.exitcode not in (0, -signal.SIGKILL):
            raise SystemExit(f"a child process ended with {self.process.exitcode}")


def ask_child(work: Callable[..., Any], *given: Any, is_fork: bool = False) -> Any:
    """Call a function in a process of its own; return what it returns, or None if it died by SIGKILL."""
    child = Child(_answer, work, given, is_fork=is_fork)
    answer = child.receive()
    child.join()
    return answer


def _answer(pipe: Any, work: Callable[..., Any], given: tuple[Any, ...]) -> None:
    pipe.send(work(*given))


def write_results(out: Path, results: dict[str, Any], begun: Circumstances) -> None:
    """Write the JSON of an experiment, with its circumstances."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"circumstances": begun.as_dict(), **results}, indent=1) + "\n")
    print(f"written to {out}")


def _others_seconds() -> float:
    """Processor time that was taken so far, less that of this process and of its children that have ended."""
    fields = [int(ticks) for ticks in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    own = os.times()
    busy = sum(ticks for i, ticks in enumerate(fields) if i not in _IDLE) / _TICK
    return busy - (own.user + own.system + own.children_user + own.children_system)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version(), "tranlogs": tranlogs.__version__}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _commit() -> str:
    """The commit that the code is at; with a plus sign where the code is not as it was committed."""
    here = Path(__file__).parent

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)

    head = git("rev-parse", "--short=10", "HEAD")
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("+" if git("diff", "--quiet", "HEAD", "--", ":/*.py").returncode else "")
