"""Kill a script of Keras at the places that a test names, and compare it with one that nobody killed.

A script is "module:function", a place ["batch", 12]: the twelfth one of that kind in its process (see `tests.kills.keras`).
There is no twin without TranLogs: a compiler may round otherwise where updates stand apart. Keras stays out of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.keras.lab import Lab
from tests.kills.judge import Death, Expected, Life, demand_quiet, finish, finished, killed, prove_deaths
from tests.kills.launchers import Server
from tests.support import campaign

Place = list[Any]


def deaths_at(places: Sequence[Place]) -> list[Death]:
    """Return the deaths at places."""
    return [Death(place, number=number) for place, number in places]


def run_whole(lab: Lab, script: str, folder: Path, *, is_logged: bool = True, **arguments: Any) -> Life:
    """Return the life of a script that nobody kills."""
    return finished(script, folder, folder / "run" if is_logged else None, launcher=Server(lab), arguments=arguments)


def kill(lab: Lab, script: str, folder: Path, place: Place, **arguments: Any) -> str:
    """Kill a script once; return what it printed."""
    launcher, (death,) = Server(lab), deaths_at([place])
    status = killed(script, folder, death, launcher=launcher, arguments=arguments)
    assert status == -9, f"{place}: {status}\n{launcher.said()}"
    return launcher.said()


def run_killed(lab: Lab, script: str, folder: Path, places: Sequence[Place], **arguments: Any) -> tuple[Life, Life]:
    """Return the uninterrupted life of a script, and the last one of the killed script."""
    whole = run_whole(lab, script, folder / "whole", **arguments)
    return whole, resume_killed(lab, script, folder, places, **arguments)


def resume_killed(lab: Lab, script: str, folder: Path, places: Sequence[Place], **arguments: Any) -> Life:
    """Return the last life of the killed script, where an uninterrupted one says nothing."""
    for place in places:
        kill(lab, script, folder / "killed", place, **arguments)
    return run_whole(lab, script, folder / "killed", **arguments)


def prove_exact(
    lab: Lab,
    script: str,
    folder: Path,
    places: Sequence[Place],
    *,
    expected: Expected | None = None,
    warns: tuple[str, ...] = (),
    **arguments: Any,
) -> Life:
    """Demand what is expected: equal bits and a report that says so, if nothing else; `warns` is of an uninterrupted run."""
    expected = expected or Expected(warns=warns)
    launcher = Server(lab)
    whole = finish(script, folder / "whole", folder / "whole" / "run", launcher=launcher, arguments=arguments)
    demand_quiet(whole, folder / "whole" / "run", expected)
    (last,) = prove_deaths(
        script, folder / "killed", whole, deaths_at(places), expected, launcher=launcher, arguments=arguments
    )
    return last


def prove_script(lab: Lab, script: str, folder: Path, places: Sequence[Place], expected: Expected, **arguments: Any) -> None:
    """Demand of a script of `scripts/` what is expected, after it was killed at all these places."""
    last = prove_exact(lab, f"tests.public.keras.scripts.{script}:train", folder, places, expected=expected, **arguments)
    assert any(line.startswith("Epoch ") for line in last.printed), "the script prints its epochs"


def demand_deviation(resumed: Life) -> None:
    """Demand that the unit which was computed again has shown that the script resumes with something else."""
    assert resumed.exact is False, resumed.notes
    assert any("was computed again, and the gradient of" in note for note in resumed.notes), resumed.notes


def places_of(name: str, backend: str, *, batches: int, validates: bool) -> list[Place]:
    """Return places of death: a random batch, then a recovery, an end of an epoch or of a validation. All of them in a soak."""
    chance = campaign.dice(name, backend)
    ends: list[Place] = [["before", 1], ["after", 1], *([["validation", 1]] if validates else [])]
    point = chance.choice(["boundary.before", "boundary.after", "log.after_commit"])
    recovery = chance.choice(["recovery.restored", "recovery.replayed"])
    others: list[Place] = [[recovery, 1], *ends]
    return [[point, chance.randint(2, batches + 2)], *(others if campaign.is_soak() else [chance.choice(others)])]
