"""The arms of a rehearsal, each with a folder and runs of its own: the twin, the killed script, the control; and the kills."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

from ..base.quantities import format_bytes
from ..training.rehearsed_process import Orders
from .compare_runs import copy_start
from .processes import Life, Limits, Stage, WorkingFolder, can_mount
from .verdict import Kill, NotJudged, RehearsalSettings

_ERROR_LINES = 3

_HARMLESS = ("/dev", "/proc", "/sys", "/memfd:", tempfile.gettempdir(), str(Path.home() / ".cache"))

Progress = Callable[[str, int, int], None]  # what is done, step, units in all


@dataclass(slots=True)
class Arm:
    """A run of the script.

    Attributes:
        name: name of the arm, and of its folder.
        place: the folder that the script works in.
        runs: the folder of its runs.
        lives: the lives of the script, in order.
    """

    name: str
    place: WorkingFolder
    runs: Path
    lives: list[Life] = field(default_factory=list)


class Arms:
    """Makes arms, and lets the script live in them.

    Args:
        settings: settings of the rehearsal.
        scratch: its folder.
        progress: called while a life goes on.
    """

    def __init__(self, settings: RehearsalSettings, scratch: Path, progress: Progress) -> None:
        self._settings, self._scratch, self._progress = settings, scratch, progress
        limits = Limits(time.monotonic() + settings.seconds, settings.disk_bytes)
        self._stage = Stage(scratch, settings.command, limits)
        self._is_mounted = can_mount(settings.folder, scratch)

    def make(self, name: str, start: Arm | None = None) -> Arm:
        """Make an arm, whose runs begin where those of `start` began."""
        folder = self._scratch / name
        arm = Arm(name, WorkingFolder.make(self._settings.folder, folder, is_mounted=self._is_mounted), folder / "runs")
        arm.runs.mkdir()
        if start is not None:
            copy_start(start.runs, arm.runs)
        return arm

    def live(self, arm: Arm, orders: Orders, what: str, *, seconds: float | None = None, is_patient: bool = False) -> Life:
        """Let the script live once.

        Args:
            arm: where.
            orders: what its processes are ordered to do.
            what: which life it is, for people.
            seconds: time after which it is killed; None for no such time.
            is_patient: do not kill it after that time if it has opened a run by then.

        Raises:
            NotJudged: a limit was reached, or the script has put itself into the background.
        """
        folder, total = self._scratch / arm.name / f"life{len(arm.lives) + 1}", self._settings.units

        def show(step: int) -> None:
            self._progress(what, step, total)

        show(0)
        orders = replace(orders, runs=str(arm.runs))
        life = self._stage.live(folder, arm.place, orders, seconds=seconds, is_patient=is_patient, progress=show)
        arm.lives.append(life)
        if life.ending == "time":
            raise NotJudged(self._describe_timeout(life, what), *last_errors(life))
        if life.ending == "disk":
            limit = format_bytes(self._settings.disk_bytes)
            raise NotJudged(f"The rehearsal took more than {limit} on disk (--disk) in {self._scratch}.")
        if life.ending == "daemon":
            raise NotJudged(
                f"The script has put itself into the background: it ended (exit code {life.code}) and left processes behind "
                f"({life.left}), which were killed. Rehearse it in the foreground."
            )
        return life

    def find_outside_writes(self) -> list[str]:
        """Return the names of files outside of the rehearsal that the script had open for writing."""
        own = [str(self._scratch), *_HARMLESS]
        if self._is_mounted:
            own.append(str(self._settings.folder))
        return sorted(name for name in self._stage.written if not any(name.startswith(f"{folder}/") for folder in own))

    def _describe_timeout(self, life: Life, what: str) -> str:
        limit = f"within the {self._settings.seconds:.0f} s of --time"
        if not life.of("unit"):
            where = "has opened its run and " if life.of("open") else ""
            return f"The script {where}took no step {limit} (life: {what})."
        return f"The rehearsal did not end {limit}: it was at step {life.steps} (life: {what}). Give more, or fewer --units."


def describe_end(life: Life) -> str:
    """Return how a script has ended, in words."""
    if life.ending != "exited":
        return life.ending
    if life.code is not None and life.code < 0:
        return f"killed by signal {-life.code}"
    return f"exit code {life.code}"


def last_errors(life: Life) -> list[str]:
    """Return the last lines of the script's errors, and what they mean."""
    lines = [line for line in life.errors.splitlines() if line.strip()][-_ERROR_LINES:]
    found = [f"stderr: {line}" for line in lines]
    if any("EOFError" in line or "Inappropriate ioctl" in line for line in lines):
        found.append("the script waits for input, and a rehearsal has none: give what it asks for as arguments")
    return found


_START_SHARE = 0.3, 1.0  # of the time to the first unit, when a script is killed while it starts


@dataclass(frozen=True, slots=True)
class Death:
    """A moment at which the script is killed.

    Attributes:
        step: the kill comes after this step.
        after: seconds between.
        rank: rank of the process that dies. The others are killed when it has died.
        in_start: the script is killed once more before that, while it starts: seconds after its start; None if it is not.
    """

    step: int
    after: float
    rank: int
    in_start: float | None = None


@dataclass(slots=True)
class Killed:
    """Outcome of the kills.

    Attributes:
        kills: the kills.
        failure: the life in which the script ended before it had come as far as the twin; None if there is none.
    """

    kills: list[Kill] = field(default_factory=list)
    failure: Life | None = None


def plan_deaths(twin: Life, count: int, dice: random.Random) -> list[Death]:
    """Return the moments of the kills: after random steps before the last one, a random part of a unit later.

    If there are two and more, the script is also killed once while it starts.
    """
    steps = sorted({event["step"] for event in twin.units})[:-1]
    ranks = sorted({event["rank"] for event in twin.of("open")})
    times = [float(event["time"]) for event in twin.units]
    pace = median([later - earlier for earlier, later in pairwise(times)] or [0.0])
    start = max(0.1, twin.seconds - (float(twin.events[-1]["time"]) - times[0]))
    chosen = sorted(dice.sample(steps, min(count, len(steps))))
    deaths = [Death(step, dice.uniform(0, pace), dice.choice(ranks)) for step in chosen]
    if len(deaths) > 1:
        number = dice.randrange(1, len(deaths))
        deaths[number] = replace(deaths[number], in_start=dice.uniform(*_START_SHARE) * start)
    return deaths


def kill_repeatedly(arms: Arms, arm: Arm, orders: Orders, twin: Life, deaths: list[Death]) -> Killed:
    """Kill the script and start it again, until it has come as far as the twin.

    Args:
        arms: lets it live.
        arm: where.
        orders: orders to come as far as the twin.
        twin: the life of the twin.
        deaths: the moments of the kills.
    """
    killed = Killed()
    for death in deaths:
        die = replace(orders, die_at=death.step, die_after=death.after, die_rank=death.rank)
        for seconds in [death.in_start, None] if death.in_start is not None else [None]:
            life = arms.live(arm, die, f"kill {len(killed.kills) + 1}", seconds=seconds)
            if life.ending in ("died", "killed"):
                killed.kills.append(Kill(life.steps, life.seconds, "training" if life.of("unit") else "start"))
            elif life.ending == "end" or (life.ending == "exited" and life.code == 0):
                return killed  # it was faster than the kill
            else:
                killed.failure = life
                return killed
            if life.ending == "died":
                break
    life = arms.live(arm, orders, "last life")
    if life.ending == "exited" and (life.code != 0 or life.steps < twin.steps):
        killed.failure = life
    return killed
