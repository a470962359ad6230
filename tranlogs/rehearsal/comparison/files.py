"""Comparison of the files that a script has written."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base.quantities import count
from .differences import Difference, find_difference
from .printed import Line, Noise, split_lines

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
