"""Kill a script by SIGKILL, run it again, and compare it with one that nobody killed. Keras stays out of this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.keras.lab import Ended, Lab, differences
from tests.kills.judge import Expected, demand_fit
from tests.public.words import heard_in
from tests.support import campaign

Place = list[Any]
_COMPARED = ("state", "histories", "epochs", "files", "others", "printed", "said")


def run_killed(lab: Lab, script: str, folder: Path, places: Sequence[Place], **arguments: Any) -> tuple[Any, Any]:
    """Return the outcomes of the uninterrupted script and of the killed one."""
    (right,), (*_, resumed) = _lives(lab, script, folder, places, "run", arguments)
    return right.value, resumed.value


def resume_killed(lab: Lab, script: str, folder: Path, places: Sequence[Place], **arguments: Any) -> Any:
    """Return the outcome of the killed script, where that of an uninterrupted one says nothing."""
    return _killed(lab, script, places, {"run": str(folder / "killed")} | arguments)[-1].value


def prove_exact(
    lab: Lab, script: str, folder: Path, places: Sequence[Place], *, warns: tuple[str, ...] = (), **arguments: Any
) -> Any:
    """Demand equal bits, and a report that says so; `warns` is what the uninterrupted run warns of (`Expected`)."""
    (whole,), (*_, last) = _lives(lab, script, folder, places, "run", arguments)
    right, resumed = whole.value, last.value
    _demand_words(whole, last, folder / "whole", folder / "killed", Expected(warns=warns))
    different = [text for what in ("history", "others", "state") for text in _different(what, right[what], resumed[what])]
    demand_fit(different, resumed["exact"], resumed["notes"], Expected(), f"killed at {places}")
    return resumed


def demand_deviation(resumed: Any) -> None:
    """Demand that the unit which was computed again has shown that the script resumes with something else."""
    assert resumed["exact"] is False, resumed["notes"]
    assert any("was computed again, and the gradient of" in note for note in resumed["notes"]), resumed["notes"]


def prove_script(lab: Lab, script: str, folder: Path, places: Sequence[Place], expected: Expected, **arguments: Any) -> None:
    """Demand of a script of `scripts/`, and of its report, what is expected, after it was killed at all these places."""
    lives = _lives(lab, f"tests.public.keras.scripts.{script}.train", folder, places, "folder", arguments)
    wanted, found = (
        ended[-1].value | {"printed": _epochs([life.output for life in ended]), "said": _said(ended[-1].output)}
        for ended in lives
    )
    (whole,), (*_, last) = lives
    _demand_words(whole, last, folder / "whole" / "run", folder / "killed" / "run", expected)
    assert wanted["printed"], "the script prints its epochs"
    different = [text for what in _COMPARED for text in _different(what, wanted[what], found[what])]
    demand_fit(different, found["exact"], found["notes"], expected, f"killed at {places}")


def _demand_words(whole: Ended, last: Ended, run: Path, resumed: Path, expected: Expected) -> None:
    """Demand of both what a user may read: no warning without need, and lines of a known form."""
    begun, goes_on = heard_in(whole.output, run), heard_in(last.output, resumed)
    begun.demand_quiet(expected.warns)
    begun.demand_forms(run)
    goes_on.demand_forms(resumed)
    goes_on.demand_verdict(last.value["exact"], resumed)


def _lives(
    lab: Lab, function: str, folder: Path, places: Sequence[Place], keyword: str, arguments: dict[str, Any]
) -> tuple[list[Ended], list[Ended]]:
    """Return how the script ended that nobody killed, and each process of the other one. `keyword` names its folder."""
    whole = lab.start_first(function, **{keyword: str(folder / "whole")}, die=None, **arguments)
    killed = _killed(lab, function, places, {keyword: str(folder / "killed")} | arguments)
    right = whole.wait()
    assert right.code == 0, right.output[-6000:]
    return [right], killed


def _killed(lab: Lab, function: str, places: Sequence[Place], arguments: dict[str, Any]) -> list[Ended]:
    """Return how each process of the killed script ended; the last one came to the end."""
    found = []
    for place in places:
        found.append(lab.run(function, die=place, **arguments))
        assert found[-1].was_killed, f"{place}: {found[-1].output[-6000:]}"
    found.append(lab.run(function, die=None, **arguments))
    assert found[-1].code == 0, found[-1].output[-6000:]
    return found


def places_of(name: str, backend: str, *, batches: int, validates: bool) -> list[Place]:
    """Return places of death: a random batch, then a recovery, an end of an epoch or of a validation. All of them in a soak."""
    chance = campaign.dice(name, backend)
    ends = [["before", 1], ["after", 1], *([["validation", 1]] if validates else [])]
    point = chance.choice(["boundary.before", "boundary.after", "log.after_commit"])
    recovery = chance.choice(["recovery.restored", "recovery.replayed"])
    others = [["failpoint", recovery, 1], *ends]
    return [["failpoint", point, chance.randint(2, batches + 2)], *(others if campaign.is_soak() else [chance.choice(others)])]


def _different(what: str, right: Any, found: Any) -> list[str]:
    if isinstance(right, dict):
        return [f"{what}: {name}" for name in differences(right, found)]
    return [] if right == found else [f"{what}: {right} and {found}"]


def _epochs(outputs: Sequence[str]) -> dict[str, list[str]]:
    """Return the numbers that were printed last for each epoch."""
    found: dict[str, list[str]] = {}
    for output in outputs:
        name = ""
        for line in output.splitlines():
            if line.startswith("Epoch "):
                name = line.strip()
            elif " - " in line and name:
                found[name] = [part.strip() for part in line.split(" - ") if ": " in part]
    return found


def _said(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("> ")]
