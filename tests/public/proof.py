"""Kill a script at every kind of place and at random moments, and compare it with its untouched twin.

Here are the rule that a report has to fit its result (`demand_fit`), for all frameworks, and the lives of PyTorch scripts.
Those of Keras scripts, in processes of a server, are in tests/public/keras/proof.py.

A PyTorch script is a function of a `Job`. Each of its lives is a forked child, so that torch is imported once:

| life | what it is for |
|---|---|
| twin | the script without TranLogs, never killed: what is right |
| whole | the script with TranLogs, never killed: logging changes nothing |
| killed | one life after the other in one run, each ended by SIGKILL at another place; the last one goes to the end |
| again | the finished run, started once more: nothing is trained, nothing differs |

Weights, optimizers, whatever else the script keeps, random states, printed lines and written files are compared. What the
report says has to fit: `exact=True` of a result that differs is an error whatever the script expects, and so is "not verified"
for another reason than the one that the test names. What a user reads of TranLogs is of a known form (`words`), and a script
that nobody kills warns of nothing but true problems.
"""

from __future__ import annotations

import io
import os
import pickle
import random
import signal
import sys
import zlib
from collections import UserList
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first step imports it, which would take every life a second

from tests.public.words import Heard, listening
from tests.support import campaign
from tests.torch.lab import Attempt, Outcome, differences, flatten, in_child
from tranlogs_torch import LoggedOptimizer

RANDOM_KILLS = 2
CALLS_OF_A_RECOVERY = 20_000  # more than a small one makes: a later kill comes where recovery has just ended
CALLS_OF_A_BATCH = 3_000

Script = Callable[["Job"], None]


@dataclass(frozen=True)
class Death:
    """Where a life ends.

    Attributes:
        place: a kind of place of the script ("batch", "epoch end", ...); "any": between two places; "recovery": in `recover()`.
        after: number of places of any kind that are passed before; the first place of the kind behind them counts.
        calls: number of function calls, and returns from them, behind that place, or from the beginning of `recover()`.
    """

    place: str
    after: int = 0
    calls: int = 0


@dataclass(frozen=True)
class Expected:
    """What a script comes to.

    Attributes:
        exact: last word of the report.
        because: text of a note, if `exact` is not True.
        is_equal: whether the result equals the twin's; None if it may. A script whose result may differ is not verified, or not
            exact, unless it was equal and proven in the end. It may also end before it comes to the place where it is to die.
        repeats: whether code around finished epochs runs again, so that it prints other lines.
        warns: texts of what an uninterrupted run warns of, each a true problem.
    """

    exact: bool | None = True
    because: str = ""
    is_equal: bool | None = True
    repeats: bool = False
    warns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.is_equal or self.exact is not True
        assert bool(self.because) == (self.exact is not True), "a script that is not exact names the reason"


class Job(Attempt):
    """One life of a script, as if it printed what `recover()` returns.

    Args:
        folder: what the script prints and writes lies here, over all lives.
        run: folder of the run; None for the twin.
        death: where this life ends.
        options: for `LoggedOptimizer`.
    """

    def __init__(self, folder: Path, run: Path | None = None, death: Death | None = None, **options: Any) -> None:
        super().__init__(run, **options)
        self.folder, self.files, self.death = folder, folder / "files", death
        self.files.mkdir(parents=True, exist_ok=True)
        self.places = UserList[str]()  # of a kind that is not taken for state of the script's loop
        self._calls = 0
        self._report: Callable[[], Any] = lambda: None

    def wrap(self, optimizer: Any, model: Any = None, **options: Any) -> Any:
        """Return the optimizer, logged; or plain, with the loops of a logged one."""
        found = super().wrap(optimizer, model, **options)
        if self.run is not None:
            self.watch(lambda: found.report)
        return found

    def start(self, optimizer: Any, /, **tracked: Any) -> None:
        """Track and recover, and print the report."""
        super().start(optimizer, **tracked)
        if self.reports:
            print(f"TranLogs: {self.reports[-1]}")

    def watch(self, report: Callable[[], Any]) -> None:
        """Say where the report of the recovery is to be found when the script ends."""
        self._report = report

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments that the callbacks of trainers pass to `LoggedOptimizer`."""
        return self.options

    def at(self, place: str = "batch") -> None:
        """Be at a place where the process can die."""
        self.places.append(place)
        if self.death is None or self.death.place not in (place, "any") or len(self.places) <= self.death.after:
            return
        if not self.death.calls:
            os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(self._count)

    def tick(self) -> None:
        """Be inside the body of the loop."""
        self.at("batch")

    def print(self, *values: Any) -> None:
        """Print a line; one system call, so that no kill leaves a half."""
        with open(self.folder / "printed", "ab", buffering=0) as file:
            file.write((" ".join(map(str, values)) + "\n").encode())

    def live(self, script: Script) -> dict[str, Any]:
        """Run the script in this process; what it came to."""
        if self.death is not None and self.death.place == "recovery":
            self._die_in_recovery()
        with listening() as heard:
            script(self)
        report = self._report()
        return {
            "heard": heard,
            "outcome": self.outcome(),
            "exact": getattr(report, "exact", None),
            "notes": list(getattr(report, "notes", ())),
            "step": getattr(report, "step", 0),
            "places": list(self.places),
        }

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        self._calls += 1
        if self.death is not None and self._calls >= self.death.calls:
            os.kill(os.getpid(), signal.SIGKILL)

    def _die_in_recovery(self) -> None:
        recover = LoggedOptimizer.recover

        def dying(optimizer: LoggedOptimizer, *arguments: Any, **options: Any) -> Any:
            sys.setprofile(self._count)
            recover(optimizer, *arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        LoggedOptimizer.recover = dying  # type: ignore[method-assign]  # in this child only


@dataclass(frozen=True)
class Life:
    """A life that went to the end, and what all lives before it left in their folder."""

    outcome: Outcome
    heard: Heard
    exact: bool | None
    notes: list[str]
    step: int
    places: list[str]
    printed: list[str]
    files: dict[str, bytes]

    def differences(self, other: Life, *, prints: bool = True) -> list[str]:
        """Name what differs from another life. A killed script may print a line twice; it prints no line that is wrong."""
        found = differences(self.outcome, other.outcome)
        if prints:
            found += [f"printed: {line}" for line in sorted(set(self.printed) ^ set(other.printed))]
        names = sorted(self.files.keys() | other.files.keys())
        return found + [f"file {name}" for name in names if _content(self.files.get(name)) != _content(other.files.get(name))]


def _content(file: bytes | None) -> Any:
    """Return what a file of `torch.save` holds, to the bit, or else its bytes.

    The bytes of such a file also tell which objects within it are one and the same, such as the tuple that is the default of
    two parameter groups. A group that was recovered has a tuple of its own.
    """
    try:
        return file if file is None else flatten(torch.load(io.BytesIO(file), weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError):  # not such a file, or one with a whole module in it
        return file


def finished(script: Script, folder: Path, run: Path | None = None, **options: Any) -> Life:
    """Let a script live to its end."""
    result = folder / "result"

    def live() -> None:
        found = Job(folder, run, **options).live(script)
        result.write_bytes(pickle.dumps(found))

    status = in_child(live)
    assert status == 0, f"the script ended with status {status}"
    printed, files = folder / "printed", folder / "files"
    return Life(
        **pickle.loads(result.read_bytes()),
        printed=printed.read_text().splitlines() if printed.exists() else [],
        files={str(path.relative_to(files)): path.read_bytes() for path in sorted(files.rglob("*")) if path.is_file()},
    )


def plan_deaths(chance: random.Random, places: list[str]) -> list[Death]:
    """Return deaths at each kind of place, inside recovery, and at random moments; all of them lie before the end."""
    kinds = sorted(set(places))
    count = len(kinds) + RANDOM_KILLS + 1
    share = len(places) // (count + 1)
    deaths = [Death(kind, chance.randrange(share + 1)) for kind in kinds]
    deaths += [Death("any", chance.randrange(share + 1), _calls(chance, CALLS_OF_A_BATCH)) for _ in range(RANDOM_KILLS)]
    chance.shuffle(deaths)
    deaths.insert(chance.randrange(1, count), Death("recovery", calls=_calls(chance, CALLS_OF_A_RECOVERY)))
    return deaths


def _calls(chance: random.Random, most: int) -> int:
    return int(most ** chance.uniform(0.1, 1))


def prove(script: Script, folder: Path, expected: Expected | None = None, **options: Any) -> Life:
    """Kill a script, and demand of the result and of the report what is expected (by default: equal, and exact)."""
    expected = expected or Expected()
    twin = finished(script, folder / "twin")
    whole = finished(script, folder / "whole", folder / "whole" / "run", **options)
    assert not (found := whole.differences(twin)), f"logging alone changes {found}"
    whole.heard.demand_quiet(expected.warns)
    whole.heard.demand_forms(folder / "whole" / "run")
    seed = campaign.seed() + zlib.crc32(folder.name.encode())
    last, has_differed = whole, False
    for number in range(campaign.rounds(5)):
        deaths = plan_deaths(random.Random(seed + number), twin.places)
        place = folder / f"killed{number}"
        for death in deaths:
            status = in_child(lambda place=place, death=death: Job(place, place / "run", death, **options).live(script))
            died = status == -signal.SIGKILL or (status == 0 and not expected.is_equal)
            assert died, f"a life was to end at {death} of {deaths}; its exit status is {status}"
        last = finished(script, place, place / "run", **options)
        judge(twin, last, expected, f"seed {seed + number}, killed at {deaths}")
        last.heard.demand_forms(place / "run")
        last.heard.demand_verdict(last.exact, place / "run")
        has_differed |= bool(last.differences(twin))
        if expected.is_equal:
            again = finished(script, place, place / "run", **options)
            assert not (found := again.differences(twin, prints=not expected.repeats)), f"started once more: {found}"
            again.heard.demand_forms(place / "run")
            again.heard.demand_end()
    assert expected.is_equal is not False or has_differed, "no death has changed the result, so that this script shows nothing"
    return last


def judge(twin: Life, last: Life, expected: Expected, about: str) -> None:
    """Demand that the report of a life fits its result, and both what is expected."""
    demand_fit(last.differences(twin, prints=not expected.repeats), last.exact, last.notes, expected, about)


def demand_fit(differences: Sequence[str], exact: bool | None, notes: Sequence[str], expected: Expected, about: str) -> None:
    """Demand that a report fits a result, and both what is expected.

    Args:
        differences: what of the result differs from that of the twin.
        exact: last word of the report.
        notes: of the report.
        expected: what the script comes to.
        about: how to repeat it.
    """
    if differences:
        assert exact is not True, f"{about}: called exact, and these differ: {differences}"
    assert not (differences and expected.is_equal), f"{about}: {differences}; the report says {exact}, {notes}"
    if not expected.is_equal and not differences and exact is True:
        return
    assert exact is expected.exact, f"{about}: the report says {exact}, {notes}"
    assert not expected.because or any(expected.because in note for note in notes), f"{about}: {notes}"
