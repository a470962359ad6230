"""Comparison of what a script printed, unit by unit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..processes.process_life import Life
from .differences import Difference

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OVERWRITING = re.compile(r"[\r\b]+")
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]?|\b\d{1,2}:\d\d(:\d\d)?([.,]\d+)?\b|\b0x[0-9a-f]+\b|"
    r"\b\d+(\.\d+)?\s?(it|its|steps?|samples?|batch(es)?|tokens?|[KMG]i?B|B)/s(ec)?\b|"
    r"\b\d+(\.\d+)?\s?(s|ms|us|µs|ns|sec|secs|seconds?|min|minutes?|h|hours?)\b(/[a-z]+)?",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")

Line = tuple[str, tuple[str, ...]]  # the text without its numbers, and the numbers


def split_lines(output: bytes) -> list[str]:
    """Return the finished lines of an output, as they stay on a terminal, without empty ones.

    A progress bar that is overwritten is shown as often as time allows; what it shows last stays.
    """
    lines = _ESCAPES.sub("", output.decode(errors="replace")).split("\n")[:-1]
    shown = ([part for part in _OVERWRITING.split(line) if part.strip()] for line in lines)
    return [parts[-1].strip() for parts in shown if parts]


def parse(line: str) -> Line:
    """Split a line into its text and its numbers. Measured times and dates are left out."""
    line = _TIMES.sub("<time>", line)
    return _NUMBERS.sub("#", line), tuple(_NUMBERS.findall(line))


@dataclass(slots=True)
class Noise:
    """Differences between two runs that were not killed. They prove nothing about a kill.

    Attributes:
        columns: numbers, each by the text of its line and its place in the line.
        texts: texts of lines that were not printed equally often.
    """

    columns: set[tuple[str, int]] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)

    def learn(self, a: Sequence[str], b: Sequence[str]) -> None:
        """Learn from what two runs that were not killed printed at the same place."""
        ours, theirs = list(map(parse, a)), list(map(parse, b))
        if [text for text, _ in ours] != [text for text, _ in theirs]:
            counts, others = Counter(text for text, _ in ours), Counter(text for text, _ in theirs)
            self.texts |= {text for text in counts.keys() | others.keys() if counts[text] != others[text]}
            ours = sorted(line for line in ours if line[0] not in self.texts)
            theirs = sorted(line for line in theirs if line[0] not in self.texts)
        for (text, x), (other, y) in zip(ours, theirs, strict=False):
            if text == other:
                self.columns |= {(text, i) for i, (m, n) in enumerate(zip(x, y, strict=False)) if m != n}

    def strip(self, lines: Iterable[str]) -> list[tuple[str, Line]]:
        """Return lines with what can be compared of them; lines that cannot be compared are left out."""
        found = []
        for line in lines:
            text, numbers = parse(line)
            if text not in self.texts:
                kept = tuple("#" if (text, i) in self.columns else number for i, number in enumerate(numbers))
                found.append((line, (text, kept)))
        return found


def find_other_line(expected: Sequence[str], found: Sequence[str], noise: Noise) -> str | None:
    """Return in words the first line that differs; None if all are equal."""
    ours, theirs = noise.strip(expected), noise.strip(found)
    for (line, x), (other, y) in zip(ours, theirs, strict=False):
        if x != y:
            return f"{_brief(other)} instead of {_brief(line)}"
    if len(ours) > len(theirs):
        return f"{_brief(ours[len(theirs)][0])} is missing"
    if len(theirs) > len(ours):
        return f"{_brief(theirs[len(ours)][0])} is not there without a kill"
    return None


def _brief(line: str) -> str:
    return repr(line if len(line) <= 100 else f"{line[:97]}...")


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
