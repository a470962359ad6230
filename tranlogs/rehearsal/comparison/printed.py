"""Comparison of what a script printed, unit by unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..processes.process_life import Life
from .differences import Difference
from .text_lines import Noise, find_other_line, split_lines


@dataclass(frozen=True, slots=True)
class PrintedUnit:
    """The lines that a script printed between two boundaries.

    Attributes:
        step: the step at the later boundary.
        lines: the lines.
        is_first: True for the first unit of a process: what was printed before its loop may be among the lines.
    """

    step: int
    lines: list[str]
    is_first: bool


def read_units(lives: Sequence[Life]) -> dict[int, PrintedUnit]:
    """Return what each committed unit has printed, by its step. What a unit printed that was killed is not among it."""
    found = {}
    for life in lives:
        output = life.output
        begin = max((event["stdout"] for event in life.of("begin", "recheck") if event["rank"] == 0), default=0)
        for number, event in enumerate(life.units):
            lines = split_lines(output[begin : event["stdout"]])
            found[event["step"]] = PrintedUnit(event["step"], lines, number == 0)
            begin = event["stdout"]
    return found


def has_printed(life: Life) -> bool:
    """Return True if a script printed a line in a unit that is compared."""
    return any(unit.lines and not unit.is_first for unit in read_units([life]).values())


def compare_printed(twin: Life, control: Life | None, killed: Sequence[Life]) -> Difference | None:
    """Return the first line that a killed script printed differently; None if there is none.

    Args:
        twin: the script, not killed.
        control: the same once more, if there is one. Its other lines prove nothing.
        killed: the lives of the script that was killed.
    """
    ours, theirs = read_units([twin]), read_units(killed)
    again = {} if control is None else read_units([control])
    noise = Noise()
    for step, unit in ours.items():
        if step in again and not unit.is_first:
            noise.learn(unit.lines, again[step].lines)
    if _is_group(twin):
        return _compare_together(list(ours.values()), list(theirs.values()), noise)
    for step, unit in ours.items():
        if step not in theirs or unit.is_first:
            continue
        found = theirs[step].lines
        if theirs[step].is_first:
            found = found[-len(unit.lines) :] if unit.lines else []
        if (other := find_other_line(unit.lines, found, noise)) is not None:
            return Difference("printed", other, step=step)
    return None


def _is_group(life: Life) -> bool:
    """Return True if several processes trained: they print into one file, in no order."""
    return len({event["rank"] for event in life.of("open")}) > 1


def _compare_together(ours: list[PrintedUnit], theirs: list[PrintedUnit], noise: Noise) -> Difference | None:
    """Compare the lines of all units as sets."""
    expected = {line: raw for unit in ours for raw, line in noise.strip(unit.lines) if not unit.is_first}
    found = {line: raw for unit in theirs for raw, line in noise.strip(unit.lines)}
    begun = {line for unit in ours if unit.is_first for _, line in noise.strip(unit.lines)}
    missing = [raw for line, raw in expected.items() if line not in found]
    later = {line: raw for unit in theirs if not unit.is_first for raw, line in noise.strip(unit.lines)}
    more = [raw for line, raw in later.items() if line not in expected and line not in begun]
    if missing:
        return Difference("printed", f"{missing[0]!r} is missing")
    return Difference("printed", f"{more[0]!r} is not there without a kill") if more else None
