"""Kill a script at every kind of place and at random moments, and compare it with its untouched twin.

| life | what it is for |
|---|---|
| twin | the script without TranLogs, never killed: what is right |
| whole | the script with TranLogs, never killed: logging changes nothing |
| killed | one life after the other in one run, each ended by SIGKILL at another place; the last one goes to the end |
| again | the finished run, started once more: nothing is trained, nothing differs |

Weights, optimizers, whatever else the script keeps, random states, printed lines and written files are compared. What the
report says has to fit: `exact=True` of a result that differs is an error whatever the script expects, and so is "not verified"
for another reason than the one that the test names. What a user reads of TranLogs is of a known form (`words`), and a script
that nobody kills warns of nothing but true problems. The proof of a resume is on, as users have it.
"""

from __future__ import annotations

import io
import pickle
import random
import signal
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.kills.job import Death, Outcome, Script, Start, flatten
from tests.kills.launchers import PYTORCH, Launcher
from tests.public.words import Heard
from tests.support import campaign

RANDOM_KILLS = 2 if campaign.is_soak() else 1
CALLS_OF_A_RECOVERY = 20_000  # more than a small one makes: a later kill comes where recovery has just ended
CALLS_OF_A_BATCH = 3_000


@dataclass(frozen=True)
class Expected:
    """What a script comes to.

    Attributes:
        exact: last word of the report.
        because: text of a note, if `exact` is not True.
        is_equal: whether the result equals the twin's; None if it may. A script whose result may differ is not verified, or not
            exact, unless it was equal and proven in the end. It may also end before it comes to the place where it is to die.
        warns: texts of what an uninterrupted run warns of, each a true problem.
        unproven: text of a note on a resume that had nothing to compare: the result is equal, and not verified.
    """

    exact: bool | None = True
    because: str = ""
    is_equal: bool | None = True
    warns: tuple[str, ...] = ()
    unproven: str = ""

    def __post_init__(self) -> None:
        assert self.is_equal or self.exact is not True
        assert bool(self.because) == (self.exact is not True), "a script that is not exact names the reason"


@dataclass(frozen=True)
class Life:
    """A life that went to the end, and what all lives before it left in their folder."""

    outcome: Outcome
    heard: Heard
    exact: bool | None
    notes: list[str]
    recheck: str
    step: int
    position: tuple[int | None, int | None, int | None]  # the report's loop, epoch in it, and batch in it
    places: list[str]
    printed: list[str]
    files: dict[str, bytes]

    @staticmethod
    def read(folder: Path) -> Life:
        """Return the life that ended in a folder."""
        printed, files = folder / "printed", folder / "files"
        return Life(
            **pickle.loads((folder / "result").read_bytes()),
            printed=printed.read_text().splitlines() if printed.exists() else [],
            files={str(path.relative_to(files)): path.read_bytes() for path in sorted(files.rglob("*")) if path.is_file()},
        )

    def of(self, *names: str) -> Outcome:
        """Return what was kept under a name, and under a name in it."""
        kept = "".join(f"[{name!r}]" for name in names)
        found = {path: value for path, value in self.outcome.items() if path.startswith(kept)}
        assert found, f"nothing was kept under {kept}"
        return found

    def differences(self, other: Life) -> list[str]:
        """Name what differs from another life. A killed script may print a line twice; it prints no line that is wrong."""
        found = differences(self.outcome, other.outcome)
        found += [f"printed: {line}" for line in sorted(set(self.printed) ^ set(other.printed))]
        names = sorted(self.files.keys() | other.files.keys())
        return found + [f"file {name}" for name in names if content(self.files.get(name)) != content(other.files.get(name))]


def differences(a: Outcome, b: Outcome) -> list[str]:
    """Paths where two outcomes differ."""
    return [path for path in sorted(a.keys() | b.keys()) if a.get(path) != b.get(path)]


def content(file: bytes | None) -> Any:
    """Return what a file of `torch.save` or of HDF5 holds, to the bit, or else its bytes.

    The bytes of the former also tell which objects within it are one and the same, such as the tuple that is the default of two
    parameter groups. A group that was recovered has a tuple of its own. Those of the latter tell the time.
    """
    if file is None:
        return None
    if file.startswith(b"\x89HDF"):
        import h5py

        found: dict[str, bytes] = {}
        with h5py.File(io.BytesIO(file)) as opened:
            opened.visititems(lambda name, item: found.update({name: item[()].tobytes()} if hasattr(item, "dtype") else {}))
        return found
    if not file.startswith(b"PK"):
        return file
    import torch

    try:
        return flatten(torch.load(io.BytesIO(file), weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError):  # not such a file, or one with a whole module in it
        return file


def killed(
    script: Script | str, folder: Path, death: Death, *, launcher: Launcher = PYTORCH, arguments: Any = None, **options: Any
) -> int:
    """Let a script with a log live until it dies; return its exit status."""
    return launcher.run(Start(launcher.job, script, folder, folder / "run", death, options, arguments or {}))


def finish(
    script: Script | str,
    folder: Path,
    run: Path | None = None,
    *,
    launcher: Launcher = PYTORCH,
    arguments: Any = None,
    **options: Any,
) -> list[Life]:
    """Let a script live to its end; return what each of its processes came to."""
    status = launcher.run(Start(launcher.job, script, folder, run, None, options, arguments or {}))
    assert status == 0, f"the script ended with status {status}\n{launcher.said()}"
    return [Life.read(one) for one in launcher.folders(folder)]


def finished(script: Script | str, folder: Path, run: Path | None = None, **options: Any) -> Life:
    """Let a script of one process live to its end."""
    (found,) = finish(script, folder, run, **options)
    return found


def plan_deaths(chance: random.Random, places: list[str], world: int = 1) -> list[Death]:
    """Return deaths at each kind of place, inside recovery, and at random moments; all of them lie before the end."""
    kinds = sorted(set(places))
    count = len(kinds) + RANDOM_KILLS + 1
    share = len(places) // (count + 1)
    deaths = [Death(kind, chance.randrange(share + 1)) for kind in kinds]
    deaths += [Death("any", chance.randrange(share + 1), _calls(chance, CALLS_OF_A_BATCH)) for _ in range(RANDOM_KILLS)]
    chance.shuffle(deaths)
    deaths.insert(chance.randrange(1, count), Death("recovery", calls=_calls(chance, CALLS_OF_A_RECOVERY)))
    return deaths if world == 1 else [replace(death, rank=chance.randrange(world)) for death in deaths]


def _calls(chance: random.Random, most: int) -> int:
    return int(most ** chance.uniform(0.1, 1))


def prove(
    script: Script | str,
    folder: Path,
    expected: Expected | None = None,
    *,
    launcher: Launcher = PYTORCH,
    arguments: Any = None,
    **options: Any,
) -> Life:
    """Kill a script, and demand of the result and of the report what is expected (by default: equal, and exact)."""
    expected = expected or Expected()
    about: dict[str, Any] = {"launcher": launcher, "arguments": arguments}
    twin = finish(script, folder / "twin", **about)
    whole = finish(script, folder / "whole", folder / "whole" / "run", **about, **options)
    for one, right in zip(whole, twin, strict=True):
        assert not (found := one.differences(right)), f"logging alone changes {found}"
    demand_quiet(whole, folder / "whole" / "run", expected)
    seed = campaign.seed() + zlib.crc32(folder.name.encode())
    last, has_differed = whole, False
    for number in range(campaign.rounds(5)):
        deaths = plan_deaths(random.Random(seed + number), twin[0].places, len(twin))
        place = folder / f"killed{number}"
        last = prove_deaths(script, place, twin, deaths, expected, f"seed {seed + number}, ", **about, **options)
        has_differed |= any(one.differences(right) for one, right in zip(last, twin, strict=True))
        if expected.is_equal:
            again = finish(script, place, place / "run", **about, **options)
            for one, right in zip(again, twin, strict=True):
                assert not (found := one.differences(right)), f"started once more: {found}"
                one.heard.demand_forms(place / "run", of_group=len(again) > 1)
            again[0].heard.demand_end()
    assert expected.is_equal is not False or has_differed, "no death has changed the result, so that this script shows nothing"
    return last[0]


def prove_deaths(
    script: Script | str,
    folder: Path,
    right: Sequence[Life],
    deaths: Sequence[Death],
    expected: Expected,
    about: str = "",
    *,
    launcher: Launcher = PYTORCH,
    **options: Any,
) -> list[Life]:
    """Let a script die at each of these places, and end; demand what is expected of that, beside what is right."""
    for death in deaths:
        status = killed(script, folder, death, launcher=launcher, **options)
        died = status == -signal.SIGKILL or (status == 0 and not expected.is_equal)
        assert died, f"a life was to end at {death} of {deaths}; its exit status is {status}\n{launcher.said()}"
    last = finish(script, folder, folder / "run", launcher=launcher, **options)
    for one, twin in zip(last, right, strict=True):
        judge(twin, one, expected, f"{about}killed at {deaths}")
        one.heard.demand_forms(folder / "run", of_group=len(last) > 1)
        one.heard.demand_verdict(one.exact, folder / "run")
    return last


def demand_quiet(whole: Sequence[Life], run: Path, expected: Expected) -> None:
    """Demand that an uninterrupted run says what it may say: warnings of true problems, and lines of a known form."""
    whole[0].heard.demand_quiet(expected.warns)
    for life in whole:
        life.heard.demand_forms(run, of_group=len(whole) > 1)


def judge(twin: Life, last: Life, expected: Expected, about: str) -> None:
    """Demand that the report of a life fits its result, and both what is expected."""
    demand_fit(last.differences(twin), last.exact, last.notes, expected, about)


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
    if expected.unproven and exact is None and any(expected.unproven in note for note in notes):
        return
    assert exact is expected.exact, f"{about}: the report says {exact}, {notes}"
    assert not expected.because or any(expected.because in note for note in notes), f"{about}: {notes}"
