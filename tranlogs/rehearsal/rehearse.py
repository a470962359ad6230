"""A rehearsal from its beginning to its verdict.

1. the twin     the script is run until it has committed so many units, and not killed
2. the control  the same once more, from the twin's first weights. What differs now does not come from a kill
3. the killed   the same, killed by SIGKILL at random moments and started again, until it has committed as many

Then states, logs, printed lines and files of the twin and the killed script are compared.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..base.config import MIB
from ..base.errors import UsageError
from ..training.rehearsal.orders import Orders
from .advice import advise, mentions_tranlogs, read_sources, suggest_wrapping
from .comparison.differences import Difference
from .comparison.files import compare_files
from .comparison.printed import compare_printed
from .comparison.runs import compare_runs, copy_start
from .processes.life import Life, Limits, Stage
from .processes.tracker import adopting
from .processes.working_folder import WorkingFolder, can_mount, count_bytes, remove, stamp_files
from .unwrapped import find_read, judge_loss
from .verdict import Kill, Outcome, Verdict

_UNWRAPPED_SHARE = 0.25  # of the time, for each life of a script that does not use TranLogs
_UNWRAPPED_SECONDS_MAX = 20.0
_ERROR_LINES = 3

Progress = Callable[[str, int, int], None]  # what is done, units that are done, units in all


@dataclass(frozen=True, slots=True)
class RehearsalSettings:
    """Settings of a rehearsal.

    Attributes:
        command: the command line of the script.
        folder: the working folder of the script.
        units: number of units to train.
        kills: number of kills.
        seconds: time after which the rehearsal ends without a verdict.
        disk_bytes: bytes that its folder may take.
        seed: seed of the moments of the kills.
        scratch: folder in which the rehearsal's folder is made; None for the one for temporary files.
        keeps: whether that folder is kept.
    """

    command: list[str]
    folder: Path
    units: int
    kills: int
    seconds: float
    disk_bytes: int
    seed: int
    scratch: Path | None = None
    keeps: bool = False


class NotJudged(Exception):
    """The script cannot be judged; the message says why. `notes` say more."""

    def __init__(self, why: str, *notes: str) -> None:
        super().__init__(why)
        self.notes = list(notes)


def rehearse(settings: RehearsalSettings, progress: Progress = lambda what, done, total: None) -> Verdict:
    """Rehearse a crash of a script.

    Raises:
        UsageError: the command cannot be found, or a setting is wrong.
    """
    check(settings)
    started = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="tranlogs-rehearsal-", dir=settings.scratch)).resolve()
    try:
        with adopting():
            rehearsal = Rehearsal(settings, scratch, progress)
            try:
                verdict = rehearsal.run()
            except NotJudged as error:
                verdict = Verdict(Outcome.NOT_JUDGED, str(error), notes=error.notes)
        verdict.notes += rehearsal.find_outside_writes()
        verdict.command, verdict.seed = settings.command, settings.seed
        verdict.seconds, verdict.disk_bytes = time.monotonic() - started, count_bytes(scratch)
        verdict.folder = str(scratch) if settings.keeps else None
        return verdict
    finally:
        if not settings.keeps:
            remove(scratch)


def check(settings: RehearsalSettings) -> None:
    """Check the settings.

    Raises:
        UsageError: one of them is wrong.
    """
    if not settings.command:
        raise UsageError("give the command line of the script: tranlogs rehearse -- python train.py")
    if settings.units < 2:
        raise UsageError(f"--units must be at least 2, got {settings.units}: a kill comes before the last unit")
    if settings.kills < 1:
        raise UsageError(f"--kills must be at least 1, got {settings.kills}")
    name = settings.command[0]
    found = (settings.folder / name).is_file() if os.sep in name else shutil.which(name)
    if not found:
        raise UsageError(f"{name}: no such command; write it as you would in a shell: tranlogs rehearse -- python train.py")


@dataclass(slots=True)
class Arm:
    """A run of the script: the folder that it works in, the folder of its runs, and its lives."""

    name: str
    place: WorkingFolder
    runs: Path
    lives: list[Life]


class Rehearsal:
    """A rehearsal.

    Args:
        settings: its settings.
        scratch: its folder.
        progress: called while it goes on.
    """

    def __init__(self, settings: RehearsalSettings, scratch: Path, progress: Progress) -> None:
        self._settings, self._scratch, self._progress = settings, scratch, progress
        self._dice = random.Random(settings.seed)
        self._limits = Limits(time.monotonic() + settings.seconds, settings.disk_bytes)
        self._stage = Stage(scratch, settings.command, self._limits)
        self._sources = read_sources(settings.command, settings.folder)
        self._is_mounted = can_mount(settings.folder, scratch)
        self._stamps = stamp_files(settings.folder)
        self._kills: list[Kill] = []
        self._is_wrapped: bool | None = None

    def run(self) -> Verdict:
        """Run the script, kill it, compare, and judge."""
        twin = self._make_arm("twin")
        seconds = None if mentions_tranlogs(self._sources) else self._unwrapped_seconds()
        life = self._live(twin, Orders(str(twin.runs), units=self._settings.units), seconds=seconds, what="not killed")
        if not life.of("open"):
            return self._judge_unwrapped(twin, life, is_wrapped=seconds is None)
        if life.ending == "killed":  # it uses TranLogs, although no source says so
            raise NotJudged(f"the script took no unit within {life.seconds:.0f} s")
        self._require_units(life)
        control = self._make_arm("control", start=twin)
        orders = self._orders(control, life)
        again = self._live(control, orders, what="not killed, again")
        self._require_end(again, life, "started a second time, without a kill, ")
        killed = self._make_arm("killed", start=twin)
        if (failure := self._kill(killed, orders, life)) is not None:
            return failure
        return self._judge(twin, control, killed)

    def find_outside_writes(self) -> list[str]:
        """Return a note if files of the user's folder have changed."""
        now = stamp_files(self._settings.folder)
        changed = sorted(name for name in now.keys() | self._stamps.keys() if now.get(name) != self._stamps.get(name))
        if not changed:
            return []
        names = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        return [f"files of {self._settings.folder} have changed meanwhile: {names}"]

    # Lives.

    def _make_arm(self, name: str, start: Arm | None = None) -> Arm:
        folder = self._scratch / name
        arm = Arm(name, WorkingFolder.make(self._settings.folder, folder, is_mounted=self._is_mounted), folder / "runs", [])
        arm.runs.mkdir()
        if start is not None:
            copy_start(start.runs, arm.runs)
        return arm

    def _orders(self, arm: Arm, life: Life) -> Orders:
        """Return orders to go as far as a life went."""
        return Orders(str(arm.runs), step=life.steps if life.ending == "end" else None)

    def _live(self, arm: Arm, orders: Orders, *, seconds: float | None = None, what: str) -> Life:
        total = self._settings.units
        orders = replace(orders, runs=str(arm.runs))
        folder = self._scratch / arm.name / f"life{len(arm.lives) + 1}"
        life = self._stage.live(
            folder, arm.place, orders, seconds=seconds, progress=lambda step: self._progress(what, step, total)
        )
        arm.lives.append(life)
        if life.ending == "time":
            raise NotJudged(self._describe_timeout(life, what), *_last_errors(life))
        if life.ending == "disk":
            raise NotJudged(
                f"the rehearsal took more than {self._settings.disk_bytes / MIB:,.0f} MiB (--disk) of {self._scratch}"
            )
        if life.ending == "daemon":
            raise NotJudged(
                f"the script ended (exit code {life.code}) and left processes behind: {life.left}. They were ended. A script "
                "that puts itself into the background cannot be rehearsed: run it in the foreground"
            )
        return life

    def _describe_timeout(self, life: Life, what: str) -> str:
        limit = f"within the {self._settings.seconds:.0f} s of --time"
        if not life.of("unit"):
            where = "has opened its run, but " if life.of("open") else ""
            return f"the script {where}took no step {limit} (it was running {what})"
        return (
            f"the rehearsal did not end {limit}: the script was at step {life.steps} ({what}). Give more time, or fewer --units"
        )

    def _require_units(self, life: Life) -> None:
        """Demand that the twin has trained."""
        if life.ending == "exited":
            if life.code != 0:
                raise NotJudged(f"the script fails without a kill: {_describe_code(life)}", *_last_errors(life))
            if len(life.units) < 2:
                raise NotJudged(
                    f"the script ended after {len(life.units)} units: there is nothing to kill", *_last_errors(life)
                )

    def _require_end(self, life: Life, twin: Life, when: str) -> None:
        if life.ending == "exited" and (life.code != 0 or twin.ending == "end"):
            raise NotJudged(f"{when}the script does not come as far: {_describe_code(life)}", *_last_errors(life))

    # Kills.

    def _kill(self, arm: Arm, orders: Orders, twin: Life) -> Verdict | None:
        """Kill the script and start it again, until it has come as far as the twin; return a verdict if it does not."""
        steps = sorted({event["step"] for event in twin.units})[:-1]
        ranks = sorted({event["rank"] for event in twin.of("open")})
        times = [event["time"] for event in twin.units]
        pace = (times[-1] - times[0]) / max(1, len(times) - 1)
        start = self._start_seconds(twin)
        chosen = sorted(self._dice.sample(steps, min(self._settings.kills, len(steps))))
        in_start = self._dice.randrange(1, len(chosen) + 1) if len(chosen) > 1 else None
        for number, step in enumerate(chosen):
            if number == in_start:
                self._kill_in_start(arm, orders, start, number)
            die = replace(orders, die_at=step, die_after=self._dice.uniform(0, pace), die_rank=self._dice.choice(ranks))
            life = self._live(arm, die, what=f"kill {len(self._kills) + 1}")
            if life.ending == "died":
                self._kills.append(Kill(life.steps, life.seconds, "training"))
            elif life.ending == "end" or (life.ending == "exited" and life.code == 0):
                return None  # it was faster than the kill
            else:
                return self._judge_failure(arm, life)
        life = self._live(arm, orders, what="last life")
        if life.ending == "exited" and (life.code != 0 or twin.ending == "end"):
            return self._judge_failure(arm, life)
        return None

    def _kill_in_start(self, arm: Arm, orders: Orders, start: float, number: int) -> None:
        """Kill the script before it has come to its first unit."""
        seconds = self._dice.uniform(0.3, 1.0) * start
        life = self._live(arm, orders, seconds=seconds, what=f"kill {len(self._kills) + 1}")
        if life.ending == "killed":
            self._kills.append(Kill(life.steps, life.seconds, "start" if not life.of("unit") else "training"))

    def _start_seconds(self, life: Life) -> float:
        """Return how long it took the script to come to its first unit."""
        first, last = float(life.units[0]["time"]), float(life.events[-1]["time"])
        return max(0.1, life.seconds - (last - first))

    # Verdicts.

    def _judge_unwrapped(self, twin: Arm, life: Life, *, is_wrapped: bool) -> Verdict:
        """Judge a script in which no run of TranLogs was opened."""
        if life.ending == "exited" and life.code != 0:
            raise NotJudged(f"the script fails before it trains: {_describe_code(life)}", *_last_errors(life))
        if is_wrapped:
            raise NotJudged(
                "the script ended, and has not opened a run: nothing was trained with TranLogs", *_last_errors(life)
            )
        arm = self._make_arm("killed")
        nothing = Orders(str(arm.runs))
        first = self._live(arm, nothing, seconds=self._dice.uniform(0.6, 0.95) * life.seconds, what="kill 1")
        written, since = arm.place.files(), time.time_ns()
        second = self._live(arm, nothing, seconds=life.seconds, what="last life")
        loss = judge_loss(first, second, written, find_read(written, since))
        return Verdict(
            Outcome.NOT_EXACT,
            loss.headline,
            is_wrapped=False,
            kills=[Kill(0, first.seconds, "training")],
            notes=loss.notes,
            advice=suggest_wrapping(self._sources),
        )

    def _judge_failure(self, arm: Arm, life: Life) -> Verdict:
        """Judge a script that does not come as far when it was killed."""
        headline = (
            f"The script does not resume: started again after {len(self._kills)} kills, it ends ({_describe_code(life)})."
        )
        verdict = self._verdict(Outcome.NOT_EXACT, headline, arm.lives)
        verdict.notes = [*_last_errors(life), *verdict.notes]
        return verdict

    def _judge(self, twin: Arm, control: Arm, killed: Arm) -> Verdict:
        """Compare, and judge."""
        last = twin.lives[-1]
        if unsteady := compare_runs(twin.runs, control.runs):
            raise NotJudged(
                "the script does not repeat itself even without a kill, so that nothing can be said about one",
                *map(str, unsteady),
                "started twice from the same first weights, it trains differently: random numbers without a seed in the data, "
                "threads or kernels that round differently, a time limit",
            )
        differences = compare_runs(twin.runs, killed.runs)
        printed = compare_printed(last, control.lives[-1], killed.lives)
        others, remarks = compare_files(twin.place.files(), control.place.files(), killed.place.files())
        compared = self._compared(twin, differences, printed, others)
        differences = [*differences, *([printed] if printed is not None else []), *others]
        count = f"{len(self._kills)} kill{'s' if len(self._kills) != 1 else ''}"
        if not self._kills:
            raise NotJudged("no kill came before the last unit: give more --units")
        if differences:
            verdict = self._verdict(Outcome.NOT_EXACT, f"The script does not resume exactly: {differences[0]}.", killed.lives)
        else:
            verdict = self._verdict(Outcome.EXACT, f"The script resumes exactly: {count}, and nothing differs.", killed.lives)
        verdict.units, verdict.step = len(last.units), last.steps
        verdict.ranks = len({event["rank"] for event in last.of("open")})
        verdict.compared, verdict.differences = compared, differences
        verdict.notes += remarks
        verdict.advice = advise(differences, self._framework())
        return verdict

    def _verdict(self, outcome: Outcome, headline: str, lives: Sequence[Life]) -> Verdict:
        notes = [
            f"the report of the recovery says: {note}" for life in lives for report in life.reports for note in report["notes"]
        ]
        return Verdict(outcome, headline, is_wrapped=True, kills=self._kills, notes=list(dict.fromkeys(notes)))

    def _compared(self, twin: Arm, runs: list[Difference], printed: Difference | None, files: list[Difference]) -> list[str]:
        """Return what was compared and is equal."""
        names = sorted(path.relative_to(twin.runs).parts[0] for path in twin.runs.glob("*/rank0"))
        found = (
            [] if runs else [f"weights, optimizer state, random states, data position and tracked state of {len(names)} run"]
        )
        if printed is None:
            found.append("printed lines")
        count = len(twin.place.files())
        if not files and count:
            found.append(f"{count} written files")
        return found

    def _framework(self) -> str:
        text = "".join(self._sources.values())
        return "keras" if "tranlogs_keras" in text else "torch"

    def _unwrapped_seconds(self) -> float:
        return min(_UNWRAPPED_SECONDS_MAX, _UNWRAPPED_SHARE * self._settings.seconds)


def _describe_code(life: Life) -> str:
    if life.ending != "exited":
        return life.ending
    if life.code is not None and life.code < 0:
        return f"killed by signal {-life.code}"
    return f"exit code {life.code}"


def _last_errors(life: Life) -> list[str]:
    """Return the last lines of the script's errors."""
    lines = [line for line in life.errors.splitlines() if line.strip()]
    found = [f"stderr: {line}" for line in lines[-_ERROR_LINES:]]
    if any("EOFError" in line for line in lines[-_ERROR_LINES:]):
        found.append(
            "the script waits for input, and standard input is closed in a rehearsal: give what it asks for as arguments"
        )
    return found
