"""Comparison of printed lines and of text files: numbers that measure time, and those that differ between two runs without a
kill, do not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
