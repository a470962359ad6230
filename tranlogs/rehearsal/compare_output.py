"""Comparison of what a script leaves besides its run: the files that it wrote, and the lines that it printed."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..base.quantities import count
from .compare_runs import Difference, find_difference
from .processes import Life

_HARMLESS = {("collections", "OrderedDict"): OrderedDict}


class _Stub:
    """Stands for an object of any class: what it was made of."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        made = super().__new__(cls)
        made.__dict__["made_of"] = (arguments, options)
        return made

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.__dict__["state"] = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__.setdefault("items", []).append((key, value))

    def append(self, value: Any) -> None:
        self.__dict__.setdefault("items", []).append(value)

    def extend(self, values: Any) -> None:
        self.__dict__.setdefault("items", []).extend(values)

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stub) and plain(self) == plain(other)


class _Reader(pickle.Unpickler):
    """Reads the structure of a pickle. No class and no function that it names is looked up or called."""

    def find_class(self, module: str, name: str) -> Any:
        return _HARMLESS.get((module, name)) or type(f"{module}.{name}", (_Stub,), {})

    def persistent_load(self, pid: Any) -> Any:
        return ("stored", *[part if isinstance(part, (str, int)) else type(part).__name__ for part in pid])


def read_archive(path: Path) -> Any:
    """Return the contents of a zip archive by name, with pickles in it as plain values; None if the file is none."""
    if not zipfile.is_zipfile(path):
        return None
    found: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                data, inner = archive.read(name), name.partition("/")[2] or name
                if inner == ".data/serialization_id":  # a digest of the order of the bytes
                    continue
                found[inner] = plain(_Reader(io.BytesIO(data)).load()) if inner.endswith(".pkl") else data
    except Exception:  # whatever is wrong with a file that somebody else wrote: it is compared as bytes
        return None
    return found


def plain(value: Any) -> Any:
    """Return a value of stubs as dicts, lists and plain values."""
    if isinstance(value, _Stub):
        return {"class": type(value).__name__, **{name: plain(item) for name, item in vars(value).items()}}
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, dict):
        return {repr(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


_TEXT_BYTES_MAX = 16 << 20  # of a file that is compared line by line
_DIGITS = re.compile(r"\d+")

Files = Mapping[str, Path]


def compare_files(twin: Files, control: Files | None, killed: Files) -> tuple[list[Difference], list[str]]:
    """Compare the files of a script that was killed with those of one that was not.

    Args:
        twin: files of the script that was not killed.
        control: of the same once more, if there is one. Differences between these two prove nothing.
        killed: files of the script that was killed.

    Returns:
        The differences, and remarks on what is equal but for repetitions, and on what cannot be compared.
    """
    noisy = {_DIGITS.sub("#", name) for name in twin.keys() ^ control.keys()} if control is not None else set()
    differences, remarks = [], []
    for name in sorted(twin.keys() | killed.keys()):
        if _DIGITS.sub("#", name) in noisy:
            continue
        if name not in killed or name not in twin:
            what = "is missing" if name in twin else "is not there without a kill"
            differences.append(Difference("file", name, what))
            continue
        found = _compare(twin[name], None if control is None else control.get(name), killed[name])
        if found is None:
            continue
        if found.startswith("~"):
            remarks.append(f"{name}: {found[1:]}")
        elif found.startswith("#"):
            differences.append(Difference("numbers in a file", name, found[1:]))
        else:
            differences.append(Difference("file", name, found))
    if noisy:
        remarks.append("not compared, because they differ between two runs without a kill: " + ", ".join(sorted(noisy)[:5]))
    return differences, remarks


def _compare(twin: Path, control: Path | None, killed: Path) -> str | None:
    """Return how a file differs; None if it is equal.

    A text that begins with "~" is a remark, and no difference; one that begins with "#" is about numbers in lines of which none
    is missing.
    """
    ours, theirs = _read(twin), _read(killed)
    if ours is not None and ours == theirs:
        return None
    if ours is None or theirs is None:
        return None if twin.stat().st_size == killed.stat().st_size else _sizes(twin, killed)
    again = _read(control) if control is not None else None
    if _is_text(ours) and _is_text(theirs):
        return _compare_texts(ours, again, theirs)
    a, b = read_archive(twin), read_archive(killed)
    if a is not None and b is not None:
        found = find_difference(a, b)
        if found is None:
            return None
        if control is not None and (c := read_archive(control)) is not None and find_difference(a, c) is not None:
            return "~not compared, because it differs between two runs without a kill"
        return f"{found[0]}: {found[1]}"
    if again is not None and again != ours:
        return "~not compared, because it differs between two runs without a kill"
    return _sizes(twin, killed) if len(ours) != len(theirs) else "other bytes"


def _compare_texts(ours: bytes, again: bytes | None, theirs: bytes) -> str | None:
    noise = Noise()
    if again is not None:
        noise.learn(split_lines(ours + b"\n"), split_lines(again + b"\n"))
    expected, found = noise.strip(split_lines(ours + b"\n")), noise.strip(split_lines(theirs + b"\n"))
    wanted, there = {line for _, line in expected}, {line for _, line in found}
    missing = [raw for raw, line in expected if line not in there]
    more = [raw for raw, line in found if line not in wanted]
    if missing and _has_all_texts(expected, found):
        instead = f"{more[0][:80]!r} instead of {missing[0][:80]!r}" if more else f"there is no {missing[0][:80]!r}"
        return f"#{len(missing)} of {count(len(expected), 'line')} with other numbers: {instead}"
    if missing:
        return f"{len(missing)} of {count(len(expected), 'line')} missing, the first is {missing[0][:80]!r}"
    if more:
        return f"{count(len(more), 'line')} not there without a kill, the first is {more[0][:80]!r}"
    repeated = len(found) - len(expected)
    if repeated > 0:
        return f"~{count(repeated, 'line')} more: a unit that was computed again after a kill wrote them again"
    return None


def _has_all_texts(expected: Sequence[tuple[str, Line]], found: Sequence[tuple[str, Line]]) -> bool:
    """Return True if no line is missing, apart from the numbers in it: a value of the loop differs, and no line was lost."""
    wanted, there = (Counter(text for _, (text, _) in lines) for lines in (expected, found))
    return wanted <= there


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.stat().st_size <= _TEXT_BYTES_MAX * 64 else None


def _is_text(data: bytes) -> bool:
    if len(data) > _TEXT_BYTES_MAX or b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _sizes(twin: Path, killed: Path) -> str:
    return f"{killed.stat().st_size:,} bytes instead of {twin.stat().st_size:,}"


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
