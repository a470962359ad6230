"""`make soak`: the crash tests again and again with new seeds, until each fault was tried often enough or the time is over.

What the gate leaves out of all other tests runs once.

    python -m tests.crash.soak [--minutes 60] [--kills 1000] [--only kills,damage] [--folder soak]
    python -m tests.crash.soak --report soak/tally.jsonl ... [--json docs/soak.json]

What was tried is in FOLDER/tally.jsonl, which the next soak goes on with; what failed, with the words to repeat it, in
FOLDER/failed. The second form makes the report: a table, and figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.crash import tally
from tests.crash.tally import Tried

ROOT = Path(__file__).parents[2]
_GRACE_SECONDS = 600.0  # for a round that is under way when the time is over
OTHERS = "all other crash tests, with ten times the kills and seeds"
WHOLE = "all examples and combinations of the tests of"
DAMAGE = ("a bit of a file", "a file ", "a range of a file", "two files")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the soak.

    Attributes:
        name: for `--only`.
        counts: beginnings of the faults whose tries count.
        wanted: tries.
        tests: what pytest is given for a round.
        times: how many times a round runs each campaign (TRANLOGS_SOAK), so that it takes a minute or two.
        is_one: whether a round counts as one try of `counts`: its tests take nothing down themselves.
    """

    name: str
    counts: tuple[str, ...]
    wanted: int
    tests: Sequence[str]
    times: float = 1
    is_one: bool = False


def parts(kills: int) -> list[Part]:
    """All parts; the others are scaled like the kills, of which a thousand are wanted."""

    def share(wanted: int) -> int:
        return max(1, wanted * kills // 1000)

    crash, mixed, power = "tests/crash", "tests/crash/test_mixed_kills.py", "tests/crash/test_power_cut.py"
    alone = [
        Part("kills", ("SIGKILL of a trainer",), kills, [mixed, "-k", "all_kinds"], min(2, kills / 60)),
        Part("power", ("power cut",), share(300), [power, "-k", "power_cuts"]),
        Part("read-only", ("the file system turns", "the disk dies"), share(100), [power, "-k", "turns_read_only"], 4),
        Part("full disks", ("disk full",), share(300), [mixed, "-k", "fills_up"], 4),
        Part("forks", ("forks of",), share(300), [mixed, "-k", "all_kinds"], min(2, kills / 60)),
        Part("threads", ("SIGKILL, and another number",), share(200), [f"{crash}/test_kill_torch.py"], 4),
        Part("pages", ("writes since",), share(2000), [f"{crash}/test_every_sync.py"]),
        Part("calls", ("one of several system calls",), share(300), [f"{crash}/test_system_calls.py", "-k", "several"], 15),
        Part("each call", ("SIGKILL at a system call",), share(1000), [f"{crash}/test_system_calls.py", "-k", "not several"]),
        Part("machine", ("a sequence",), share(300), [f"{crash}/test_optimizer_machine.py"], 5),
        Part("limits", ("a long run",), 4, [f"{crash}/test_long_runs.py"]),
    ]
    others = [crash, *(f"--ignore={name}" for name in sorted({part.tests[0] for part in alone}))]
    return [
        *alone,
        Part("damage", DAMAGE, share(10_000), ["tests/verify/test_corruption.py", "-k", "damage"]),
        Part("fits", ("SIGKILL of a fit",), share(300), ["tests/keras/test_kill.py", "-k", "any_script"], 4),
        Part("others", (OTHERS,), 1, [*others, "tests/monitor/test_kills.py"], 2, is_one=True),
        *(Part(f"whole {name}", (f"{WHOLE} {name}",), 1, [f"tests/{name}"], is_one=True) for name in folders()),
    ]


def folders() -> list[str]:
    """Return the folders of other tests of which the gate leaves something out."""
    tests = ROOT / "tests"
    less = [path for path in tests.glob("*/**/*.py") if re.search(r"campaign\.|sampled\(|mark\.soak|@given", path.read_text())]
    return sorted({path.relative_to(tests).parts[0] for path in less} - {"crash", "kills", "support"})


class Soak:
    """One soak: rounds of the parts in turn."""

    def __init__(self, folder: Path, wanted: Sequence[Part], minutes: float, seed: int) -> None:
        self._folder, self._parts, self._end = folder, wanted, time.monotonic() + 60 * minutes
        self._tally, self._seed, self.failed = folder / "tally.jsonl", seed, list[str]()
        print(f"seed {seed}", flush=True)
        (folder / "failed").mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Until all is done, or the time is over."""
        while left := [part for part in self._parts if self._done(part) < part.wanted]:
            for part in left:
                if time.monotonic() > self._end:
                    print("the time is over; the next soak goes on with what is left")
                    return
                self._round(part)

    def _round(self, part: Part) -> None:
        self._seed += 1000
        start, seed = time.monotonic(), str(self._seed)
        settings = {"TRANLOGS_SOAK": str(part.times), "TRANLOGS_SEED": seed, "TRANLOGS_TALLY": str(self._tally)}
        options = ["-q", "-p", "no:cacheprovider", "--timeout", "3600", f"--hypothesis-seed={seed}"]
        command = [sys.executable, "-m", "pytest", *options, *part.tests]
        before, lost = self._done(part), self._lost()
        status, said = self._run(command, settings, self._end + _GRACE_SECONDS - start)
        if status is None:
            print(
                f"{part.name}: not at its end when the time was over: give it more minutes (--only {part.name!r})", flush=True
            )
            return
        if status:
            log = self._folder / "failed" / f"{part.name.replace(' ', '-')}-{seed}.log"
            words = " ".join(f"{key}={value}" for key, value in settings.items() if key != "TRANLOGS_TALLY")
            log.write_text(f"{words} {' '.join(command[1:])}\n{said}")
            self.failed.append(str(log))
        has_failed = status != 0 and self._lost() == lost  # what it lost it did not take down by itself
        if part.is_one or has_failed:
            with self._tally.open("a") as file:
                line = Tried(part.counts[0] if part.is_one else f"a round of {part.name} that failed", 1, int(has_failed))
                file.write(json.dumps(asdict(line)) + "\n")
        now = self._done(part)
        if now == before:  # a skip, or a failure before the first try: it must not go on for ever
            self._parts = [other for other in self._parts if other is not part]
        print(
            f"{part.name}: {now} of {part.wanted}, {time.monotonic() - start:.0f} s"
            f"{f', FAILED: {self.failed[-1]}' if status else ''}",
            flush=True,
        )

    def _run(self, command: list[str], settings: dict[str, str], seconds: float) -> tuple[int | None, str]:
        """Return the exit status of a command, None if it took too long, and what it printed."""
        with (self._folder / "printed").open("w+") as printed:
            environment = {**os.environ, **settings}
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=printed, stderr=printed, start_new_session=True
            )
            status: int | None = None
            with suppress(subprocess.TimeoutExpired):
                try:
                    status = process.wait(seconds)
                finally:
                    if status is None:  # also after Ctrl-C
                        os.killpg(process.pid, signal.SIGKILL)
                        process.wait()
            printed.seek(0)
            return status, printed.read()

    def _lost(self) -> int:
        return sum(one.losses for one in tally.read(self._tally))

    def _done(self, part: Part) -> int:
        return sum(one.tries for one in tally.read(self._tally) if one.fault.startswith(part.counts))


def table(tried: Sequence[Tried]) -> str:
    """What was tried, as Markdown."""
    lines = ["| fault | tries | losses | refused by name | slowest recovery, s |", "|---|---|---|---|---|"]
    for one in tried:
        seconds = f"{one.seconds:.2f}" if one.seconds else ""
        lines.append(f"| {one.fault} | {one.tries:,} | {one.losses} | {one.refusals or ''} | {seconds} |")
    return "\n".join(lines)


def report(tallies: Sequence[Path], target: Path | None) -> None:
    """Print the table, and write the figures into a file of JSON."""
    tried = sorted(tally.summed(one for path in tallies for one in tally.read(path)), key=lambda one: one.fault.lower())
    print(table(tried))
    if target is not None:
        machine = {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
        target.write_text(json.dumps({"machine": machine, "faults": [asdict(one) for one in tried]}, indent=1) + "\n")


def main() -> int:
    """See the module; 1 if something was lost."""
    options = argparse.ArgumentParser(description="Crash tests, for as long as you like.")
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--kills", type=int, default=1000)
    options.add_argument("--only", default="", help="names of parts, with commas between")
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**8))
    options.add_argument("--folder", type=Path, default=ROOT / "soak")
    options.add_argument("--report", type=Path, nargs="+", metavar="TALLY")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    if given.report:
        report(given.report, given.json)
        return 0
    names = given.only.split(",") if given.only else None
    soak = Soak(
        given.folder.absolute(),
        [part for part in parts(given.kills) if names is None or part.name in names],
        given.minutes,
        given.seed,
    )
    soak.run()
    report([given.folder / "tally.jsonl"], given.folder / "soak.json")
    for log in soak.failed:
        print("FAILED:", log)
    return 1 if soak.failed else 0


if __name__ == "__main__":
    sys.exit(main())
