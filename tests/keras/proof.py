"""Kill a script of Keras at the places that a test names, and compare it with one that nobody killed.

A script is "module:function", below tests.keras unless it begins with "tests.". A place is ["batch", 12]: the twelfth of its
kind in the process (see `tests.kills.keras`). A fit has no twin without TranLogs: a compiler may round otherwise where updates
stand apart. Keras stays out of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.keras.lab import Lab
from tests.kills.job import Start
from tests.kills.judge import Death, Expected, Life, demand_quiet, finish, killed, prove_deaths
from tests.kills.launchers import Server

Place = list[Any]

_wholes: dict[str, Life] = {}  # uninterrupted lives of this process: several tests compare with the same one


def run_whole(
    lab: Lab, script: str, folder: Path, *, is_logged: bool = True, logged: dict[str, Any] | None = None, **arguments: Any
) -> Life:
    """Return the life of a script that nobody kills; `logged` are options of its run over those of the script."""
    run = folder / "run" if is_logged else None
    (found,) = finish(_named(script), folder, run, launcher=Server(lab), arguments=arguments, **(logged or {}))
    return found


def whole_of(lab: Lab, script: str, folder: Path, warns: tuple[str, ...] = (), **arguments: Any) -> Life:
    """Return the life of a script that nobody kills, which warns of nothing else, or the one that was run before."""
    about = repr((lab.name, script, sorted(arguments.items())))
    if about not in _wholes:
        _wholes[about] = run_whole(lab, script, folder / "whole", **arguments)
        demand_quiet([_wholes[about]], folder / "whole" / "run", Expected(warns=warns))
    return _wholes[about]


def end(lab: Lab, script: str, folder: Path, *, logged: dict[str, Any] | None = None, **arguments: Any) -> tuple[int, str]:
    """Let a script run to whatever end; return its exit status, and what it printed."""
    launcher = Server(lab)
    status = launcher.run(Start(launcher.job, _named(script), folder, folder / "run", None, logged or {}, arguments))
    return status, launcher.said()


def kill(lab: Lab, script: str, folder: Path, place: Place, *, logged: dict[str, Any] | None = None, **arguments: Any) -> str:
    """Kill a script once; return what it printed."""
    launcher, (death,) = Server(lab), _deaths([place])
    status = killed(_named(script), folder, death, launcher=launcher, arguments=arguments, **(logged or {}))
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
    with_twin: bool = False,
    logged: dict[str, Any] | None = None,
    **arguments: Any,
) -> Life:
    """Demand what is expected: equal bits and a report that says so, if nothing else.

    Args:
        lab: runs the script.
        script: see above.
        folder: of all lives.
        places: of death.
        expected: what the script comes to.
        warns: of what an uninterrupted run warns.
        with_twin: whether a run without TranLogs comes to the same, too.
        logged: options of the run that is killed, over those of the script.
        arguments: of the script.
    """
    expected = expected or Expected(warns=warns)
    whole = whole_of(lab, script, folder, expected.warns, **arguments)
    if with_twin:
        twin = run_whole(lab, script, folder / "twin", is_logged=False, **arguments)
        assert not (found := whole.differences(twin)), f"logging alone changes {found}"
    launcher, name = Server(lab), _named(script)
    (last,) = prove_deaths(
        name, folder / "killed", [whole], _deaths(places), expected, launcher=launcher, arguments=arguments, **(logged or {})
    )
    words = ("recovered to", "was finished before")
    is_unproven = bool(expected.unproven) and any(expected.unproven in note for note in last.notes)
    is_named = last.recheck or is_unproven or any(word in line for line in last.heard.lines for word in words)
    assert is_named, "nothing was recovered"
    return last


def demand_deviation(resumed: Life) -> None:
    """Demand that the unit which was computed again has shown that the script resumes with something else."""
    assert resumed.exact is False, resumed.notes
    assert any("was computed again, and the gradient of" in note for note in resumed.notes), resumed.notes


def _deaths(places: Sequence[Place]) -> list[Death]:
    return [Death(place, number=number) for place, number in places]


def _named(script: str) -> str:
    return script if script.startswith("tests.") else f"tests.keras.{script}"
