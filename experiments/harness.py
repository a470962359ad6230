"""What all experiments share: command line, folder, children that tell JSON, and results with their circumstances.

The circumstances of results are machine, versions, commit, and how busy others kept the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

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
        self._load, self._start, self._others = os.getloadavg()[0], time.monotonic(), _others_seconds()

    def as_dict(self) -> dict[str, Any]:
        """For the JSON.

        `load` is the system's load average over a minute, before and after, this experiment's own processes included;
        `others_busy` is how many processors others kept busy in the mean, and a hypervisor withheld.
        """
        seconds = time.monotonic() - self._start
        return {
            "at": self._at.isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
            "commit": self._commit,
            "load": [round(self._load, 1), round(os.getloadavg()[0], 1)],
            "others_busy": round(max(0.0, _others_seconds() - self._others) / seconds, 2),
            "machine": {
                "processor": _processor(),
                "cpus": os.cpu_count(),
                "system": f"{platform.system()} {platform.release()}",
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            },
            "versions": _versions(),
        }


def command_line(
    about: str | None, quick: str = "checks the script, not the claims", *, out: str = ""
) -> argparse.ArgumentParser:
    """Return a parser that knows `--quick` and, if results are written, `--out`.

    Args:
        about: docstring of the script.
        quick: what `--quick` does.
        out: name of the results.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    if out:
        parser.add_argument("--out", type=Path, default=RESULTS / f"{out}.json")
    return parser


def take(
    parser: argparse.ArgumentParser,
    measure: Callable[..., dict[str, Any]],
    draw: Callable[[Path, dict[str, Any]], None] | None = None,
) -> None:
    """Take a whole experiment as the command line says: `measure(quick=...)`, its results, and a picture of them."""
    arguments = parser.parse_args()
    begun = Circumstances()
    results = measure(quick=arguments.quick)
    write_results(arguments.out, results, begun)
    if draw is not None:
        draw(arguments.out.with_suffix(".png"), results)


def measured_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder on the disk that is measured: TRANLOGS_BENCH_DIR, or where temporary files are."""
    return tempfile.TemporaryDirectory(dir=os.environ.get("TRANLOGS_BENCH_DIR"))


def ask_child(script: str, *words: object, environment: Mapping[str, str] | None = None) -> Any:
    """Run a script in a process of its own; return what its last line says in JSON, or None if it died by a signal."""
    command = [sys.executable, script, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode > 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


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

    try:
        head = git("rev-parse", "--short=10", "HEAD")
    except FileNotFoundError:
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("+" if git("diff", "--quiet", "HEAD", "--", ":/*.py").returncode else "")


# Numbers.

_RESAMPLES = 2000


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """25 %, median, 75 %."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def shown(values: list[float], digits: int = 3) -> str:
    """Median and quartiles as text."""
    low, middle, high = quartiles(values)
    return f"{middle:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    """Append the seconds that the block takes."""
    start = time.perf_counter()
    yield
    into.append(time.perf_counter() - start)


def bootstrap(samples: Sequence[Any], statistic: Callable[[Any], Any]) -> list[Any]:
    """A statistic of the samples, and the bounds of its 95 % interval by resampling them with replacement.

    Args:
        samples: what varies independently: where neighbours in time are alike, their blocks.
        statistic: of an array of samples; a number, or an array of them.

    Returns:
        Its value, low, high: numbers, or lists of them.
    """
    given, chance = np.asarray(samples), np.random.default_rng(0)
    drawn = [statistic(given[chance.integers(0, len(given), len(given))]) for _ in range(_RESAMPLES)]
    low, high = np.percentile(np.array(drawn), (2.5, 97.5), axis=0)
    return [np.asarray(found).tolist() for found in (statistic(given), low, high)]
