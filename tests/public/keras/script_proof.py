"""Kill a script of `scripts/`, let it finish, and compare all that it leaves with its twin that nobody killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.keras.lab import Lab, differences
from tests.support import campaign

Place = list[Any]
_COMPARED = ("state", "histories", "epochs", "files", "others", "printed", "said")


def places_of(name: str, backend: str, *, batches: int, validates: bool) -> list[Place]:
    """Return places of death: a random batch, a recovery, an end of an epoch or a validation. All kinds of ends in a soak."""
    chance = campaign.dice(name, backend)
    ends = [["before", 1], ["after", 1], *([["validation", 1]] if validates else [])]
    chosen = ends if campaign.is_soak() else [chance.choice(ends)]
    point = chance.choice(["boundary.before", "boundary.after", "log.after_commit"])
    recovery = chance.choice(["recovery.restored", "recovery.replayed"])
    return [["failpoint", point, chance.randint(2, batches + 2)], ["failpoint", recovery, 1], *chosen]


def kill_and_compare(lab: Lab, script: str, folder: Path, places: Sequence[Place], **arguments: Any) -> tuple[Any, list[str]]:
    """Return the outcome of the killed script, and what of it differs from that of the script that nobody killed."""
    function = f"tests.public.keras.scripts.{script}.train"
    whole = lab.start(function, folder=str(folder / "whole"), die=None, **arguments)
    outputs = []
    for place in places:
        ended = lab.run(function, folder=str(folder / "killed"), die=place, **arguments)
        assert ended.was_killed, f"{place}: {ended.output[-6000:]}"
        outputs.append(ended.output)
    ended = lab.run(function, folder=str(folder / "killed"), die=None, **arguments)
    assert ended.code == 0, ended.output[-6000:]
    right = whole.wait()
    assert right.code == 0, right.output[-6000:]
    found = ended.value | {"printed": _epochs([*outputs, ended.output]), "said": _said(ended.output)}
    wanted = right.value | {"printed": _epochs([right.output]), "said": _said(right.output)}
    assert wanted["printed"], "the script prints its epochs"
    return found, [text for what in _COMPARED for text in _different(what, wanted[what], found[what])]


def judge(found: dict[str, Any], different: list[str], reason: str | None, may_differ: Sequence[str] = ()) -> None:
    """Compare the last word of the report with the outcome.

    Args:
        found: outcome of the killed script.
        different: what differs from the script that nobody killed.
        reason: part of the true reason why this script cannot be called exact; None if it has to be exact.
        may_differ: what this reason allows to differ.
    """
    unexpected = [text for text in different if text not in may_differ]
    assert not unexpected, (unexpected, found["exact"], found["notes"])
    if reason is None:
        assert found["exact"] is True, found["notes"]
    else:
        assert found["exact"] is not True, different
        assert any(reason in note for note in found["notes"]), found["notes"]


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
