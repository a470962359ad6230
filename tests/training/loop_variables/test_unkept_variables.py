"""When the variables that start over are named: at one of the first boundaries behind a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tranlogs.training import LiveReport, UnkeptVariables
from tranlogs.training.loop_variables import unkept_variables


def named_at(finds: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the boundaries at which a note was added, if the loops' variables are found as given, boundary by boundary."""
    report, at = LiveReport(Path("run")), list[int]()
    unkept = UnkeptVariables(report, lambda value: True, lambda value: False)
    monkeypatch.setattr(unkept_variables, "describe_unkept", str)
    unkept.watch()
    for place, found in enumerate(finds):
        monkeypatch.setattr(unkept._variables, "find", lambda found=found: found)
        before = len(report.texts)
        unkept.name()
        at += [place] * (len(report.texts) - before)
    return at


@pytest.mark.parametrize(
    ("finds", "at"),
    [
        ([["best"], ["best"]], [0]),
        ([[], ["best"], ["best"]], [1]),  # the first boundary was the end of an epoch
        ([None, [], ["best"]], [2]),  # outside of all loops, then at the end of an epoch
        ([[], [], [], ["best"]], []),
    ],
)
def test_they_are_named_once_at_the_first_boundary_that_shows_them(
    finds: list[Any], at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert named_at(finds, monkeypatch) == at
