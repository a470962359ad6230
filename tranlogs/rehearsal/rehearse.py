"""A rehearsal from its beginning to its verdict.

1. the twin     the script is run until it has committed so many units, and not killed
2. the killed   the same from the twin's first weights, killed by SIGKILL at random moments and started again
3. the control  if something differs: the same once more without a kill. What differs here, too, does not come from a kill

Then logs, states, printed lines and files of the twin and the killed script are compared.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..training.rehearsed_process import Orders
from .arms import Arm, Arms, Progress, describe_end, kill_repeatedly, last_errors, plan_deaths
from .compare_output import parse, split_lines
from .judging import judge, mentions_tranlogs, read_sources, suggest_wrapping
from .processes import Life, Stamps, adopting, count_bytes, ending_orderly, find_changed, remove, stamp_files
from .verdict import Kill, NotJudged, Outcome, RehearsalSettings, Verdict

CHECKPOINTS = (".pt", ".pth", ".ckpt", ".keras", ".h5", ".safetensors", ".npz", ".pkl", ".bin", ".index")


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a script that does not use TranLogs when it is killed.

    Attributes:
        headline: one sentence.
        notes: how this was found.
    """

    headline: str
    notes: list[str]


def judge_loss(first: Life, second: Life, written: Iterable[str], read: Iterable[str]) -> Loss:
    """Return the steps that were lost between a process that was killed and the next one. What they print decides first.

    Args:
        first: the life that was killed.
        second: the life after it, in the same folder.
        written: names of the files that the first life has left.
        read: names of those that the second one has read.
    """
    saved = sorted(name for name in written if Path(name).suffix in CHECKPOINTS)
    loaded = sorted(set(read) & set(saved))
    notes = [_describe_saved(saved, loaded)]
    before, after = split_lines(first.output), split_lines(second.output)
    place = _find_counter(before, after)
    if place is None:
        notes.append("nothing that it prints shows where it continues")
        lost = "at least what it has done since" if loaded else "all that it has done"
        return Loss(f"A kill costs this script {lost}: it does not use TranLogs.", notes)
    begin, end, again = place
    notes.append(f"before the kill it printed {begin!r} to {end!r}; started again, it begins with {again!r}")
    places = _read_counters([begin, end, again])
    if places[2] <= places[0]:
        notes += [f"reading {', '.join(loaded[:3])} does not make it continue"] if loaded else []
        return Loss("This script starts again from the beginning: a kill costs all that it has done.", notes)
    if places[2] <= places[1]:
        return Loss("This script continues from a checkpoint of its own: a kill costs what it has done since.", notes)
    return Loss("This script continues where it was killed, from a checkpoint of its own; whether exactly is not known.", notes)


def find_read(files: dict[str, Path], since_ns: int) -> list[str]:
    """Return the names of files that were read after a moment. File systems note it where a file has changed before."""
    return [name for name, path in files.items() if path.stat().st_atime_ns >= since_ns]


def _describe_saved(saved: list[str], loaded: list[str]) -> str:
    if not saved:
        return "it has written no file that looks like a checkpoint"
    if not loaded:
        return f"it has written {', '.join(saved[:3])}, and does not read it when it is started again"
    return f"it has written {', '.join(saved[:3])}, and reads {', '.join(loaded[:3])} when it is started again"


def _find_counter(before: list[str], after: list[str]) -> tuple[str, str, str] | None:
    """Return the first and the last line of the most frequent kind that begins with a rising number, and the first after."""
    kinds = Counter(parse(line)[0] for line in before if parse(line)[1])
    for text, _ in kinds.most_common():
        ours = [line for line in before if parse(line)[0] == text]
        theirs = [line for line in after if parse(line)[0] == text]
        if not theirs or len(ours) < 2:
            continue
        rising = _read_counters(ours)
        if rising == sorted(rising) and rising[0] < rising[-1]:
            return ours[0], ours[-1], theirs[0]
    return None


def _read_counters(lines: list[str]) -> list[tuple[float, ...]]:
    """Return the numbers that give the place of each line: the whole ones at its beginning, such as epoch and batch."""
    numbers = [parse(line)[1] for line in lines]
    whole = min(next((i for i, number in enumerate(found) if not _is_whole(number)), len(found)) for found in numbers)
    return [tuple(map(float, found[: max(1, whole)])) for found in numbers]


def _is_whole(number: str) -> bool:
    return number.lstrip("+-").isdigit()


_UNWRAPPED_SHARE = 0.25  # of the time, for each life of a script that does not use TranLogs
_UNWRAPPED_SECONDS_MAX = 20.0


def rehearse(settings: RehearsalSettings, progress: Progress = lambda what, done, total: None) -> Verdict:
    """Rehearse a crash of a script.

    Raises:
        UsageError: the command cannot be found, or a setting is wrong.
    """
    settings.check()
    started = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="tranlogs-rehearsal-", dir=settings.scratch)).resolve()
    before = stamp_files(settings.folder, scratch)
    try:
        rehearsal = Rehearsal(settings, scratch, progress)
        try:
            with adopting(), ending_orderly():
                verdict = rehearsal.run()
        except NotJudged as error:
            verdict = Verdict(Outcome.NOT_JUDGED, str(error), notes=error.notes)
        verdict.notes += [*_describe_changes(settings.folder, scratch, before), *rehearsal.describe_outside_writes()]
        verdict.command, verdict.seed = settings.command, settings.seed
        verdict.seconds, verdict.disk_bytes = time.monotonic() - started, count_bytes(scratch)
        verdict.folder = str(scratch) if settings.keeps else None
        return verdict
    finally:
        if not settings.keeps:
            remove(scratch)


class Rehearsal:
    """A rehearsal.

    Args:
        settings: its settings.
        scratch: its folder.
        progress: called while it goes on.
    """

    def __init__(self, settings: RehearsalSettings, scratch: Path, progress: Progress) -> None:
        self._settings, self._dice = settings, random.Random(settings.seed)
        self._arms = Arms(settings, scratch, progress)
        self._sources = read_sources(settings.command, settings.folder)

    def run(self) -> Verdict:
        """Run the script, kill it, compare, and judge.

        Raises:
            NotJudged: it cannot be judged.
        """
        settings, arms = self._settings, self._arms
        is_expected = mentions_tranlogs(self._sources)
        seconds = None if is_expected else min(_UNWRAPPED_SECONDS_MAX, _UNWRAPPED_SHARE * settings.seconds)
        twin = arms.make("twin")
        life = arms.live(twin, Orders("", units=settings.units), "not killed", seconds=seconds, is_patient=True)
        if not life.of("open"):
            self._require_success(life)
            if is_expected:
                raise NotJudged("The script ended and opened no run: nothing was trained with TranLogs.", *last_errors(life))
            return self._judge_unwrapped(life)
        self._require_units(life)
        orders = Orders("", step=life.steps if life.ending == "end" else None)
        killed = arms.make("killed", start=twin)
        deaths = plan_deaths(life, settings.kills, self._dice)
        kills = kill_repeatedly(arms, killed, orders, life, deaths)

        def make_control() -> Arm:
            control = arms.make("control", start=twin)
            arms.live(control, orders, "not killed, again")
            return control

        framework = "keras" if any("tranlogs_keras" in text for text in self._sources.values()) else "torch"
        return judge(twin, killed, kills, framework, make_control)

    def describe_outside_writes(self) -> list[str]:
        """Return a note if the script has written to files outside of the rehearsal's folder."""
        names = self._arms.find_outside_writes()
        return [f"the script writes outside of its working folder: {', '.join(names[:5])}"] if names else []

    def _require_success(self, life: Life) -> None:
        if life.ending == "exited" and life.code != 0:
            where = "before its first step" if not life.of("unit") else f"at step {life.steps}"
            raise NotJudged(f"The script fails without a kill, {where} ({describe_end(life)}).", *last_errors(life))

    def _require_units(self, life: Life) -> None:
        """Demand that the twin has trained enough for a kill.

        Raises:
            NotJudged: it has not.
        """
        self._require_success(life)
        if len({event["step"] for event in life.units}) < 2:
            raise NotJudged(f"The script ended at step {life.steps}: too early for a kill.", *last_errors(life))

    def _judge_unwrapped(self, twin: Life) -> Verdict:
        """Kill a script that does not use TranLogs, start it again, and report what it lost."""
        moment = self._dice.uniform(0.6, 0.95) * twin.seconds
        arm = self._arms.make("killed")
        first = self._arms.live(arm, Orders(""), "kill 1", seconds=moment)
        if first.ending == "exited":  # it was faster than without a kill
            arm = self._arms.make("killed-earlier")
            first = self._arms.live(arm, Orders(""), "kill 1", seconds=moment / 2)
        written, since = arm.place.files(), time.time_ns()
        second = self._arms.live(arm, Orders(""), "last life", seconds=twin.seconds)
        loss = judge_loss(first, second, written, find_read(written, since))
        advice = suggest_wrapping(self._sources)
        return Verdict(
            Outcome.NOT_EXACT,
            loss.headline,
            is_wrapped=False,
            kills=[Kill(0, first.seconds, "training")],
            notes=loss.notes,
            advice=advice,
        )


def _describe_changes(folder: Path, scratch: Path, before: Stamps) -> list[str]:
    """Return a note if files of the user's folder have changed since they were looked at."""
    changed = find_changed(folder, scratch, before)
    if not changed:
        return []
    names = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
    return [f"files of {folder} have changed meanwhile, outside of the rehearsal's folder: {names}"]
