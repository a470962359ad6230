from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tranlogs.rehearsal.advice import advise
from tranlogs.rehearsal.comparison.files import compare_files, read_archive

Write = Callable[[str, dict[str, bytes]], dict[str, Path]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the files of one arm."""

    def call(arm: str, contents: dict[str, bytes]) -> dict[str, Path]:
        (tmp_path / arm).mkdir()
        for name, content in contents.items():
            (tmp_path / arm / name).write_bytes(content)
        return {name: tmp_path / arm / name for name in contents}

    return call


def archive(value: Any, stored: bytes = b"12345678") -> bytes:
    """A file such as `torch.save` writes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(value))
        file.writestr("archive/data/0", stored)
    return content.getvalue()


@pytest.mark.parametrize(
    ("twin", "killed", "difference"),
    [
        ({"a.csv": b"1\n2\n3\n"}, {"a.csv": b"1\n2\n3\n"}, None),
        ({"a.csv": b"1\n2\n3\n"}, {"a.csv": b"2\n3\n"}, "1 of 3 lines missing, the first is '1'"),
        ({"a.csv": b"1\n2\n"}, {"a.csv": b"1\n7\n2\n"}, "1 line not there without a kill, the first is '7'"),
        ({"a.csv": b"1\n"}, {}, "is missing"),
        ({}, {"b.csv": b"1\n"}, "is not there without a kill"),
        ({"a.bin": b"\0\1"}, {"a.bin": b"\0\2"}, "other bytes"),
        ({"a.bin": b"\0\1"}, {"a.bin": b"\0\1\2"}, "3 bytes instead of 2"),
    ],
)
def test_difference_of_files_is_named(
    twin: dict[str, bytes], killed: dict[str, bytes], difference: str | None, write: Write
) -> None:
    found, _ = compare_files(write("twin", twin), None, write("killed", killed))
    assert [one.detail for one in found] == ([] if difference is None else [difference])
    assert {one.what for one in found} <= twin.keys() | killed.keys()


@pytest.mark.parametrize(
    ("killed", "detail"),
    [
        ("turn 1\nturn 2\nturn 1\nturn 2\n", "2 of 4 lines with other numbers: there is no 'turn 3'"),
        ("turn 1\nturn 2\nturn 2\nturn 8\nturn 9\n", "2 of 4 lines with other numbers: 'turn 8' instead of 'turn 3'"),
    ],
)
def test_numbers_that_differ_in_lines_of_which_none_is_missing_are_those_of_the_loop(
    killed: str, detail: str, write: Write
) -> None:
    """A counter that starts over; how the file is opened has nothing to do with it."""
    twin = write("twin", {"log.txt": b"turn 1\nturn 2\nturn 3\nturn 4\n"})
    found, _ = compare_files(twin, None, write("killed", {"log.txt": killed.encode()}))
    assert [(one.kind, one.detail) for one in found] == [("numbers in a file", detail)]
    (line, count) = advise(found, "torch")
    assert "optimizer.remember(" in line
    assert "enumerate=True" in count
    lost, _ = compare_files(twin, None, {"log.txt": write("lost", {"log.txt": b"turn 3\nturn 4\n"})["log.txt"]})
    assert advise([*lost, *found], "torch") == [line, count], "what differs first decides"
    assert 'open the file with "a"' in advise(lost, "torch")[0]
    assert advise(found, "torch", remembering=["state = optimizer.remember(n=0)"])[0] == "state = optimizer.remember(n=0)"


def test_lines_of_the_unit_that_was_killed_may_be_there_twice(write: Write) -> None:
    found, remarks = compare_files(write("twin", {"a.csv": b"1\n2\n3\n"}), None, write("killed", {"a.csv": b"1\n2\n2\n3\n"}))
    assert found == []
    assert remarks == ["a.csv: 1 line more: a unit that was computed again after a kill wrote them again"]


def test_files_that_differ_without_a_kill_are_not_compared(write: Write) -> None:
    twin, control = write("twin", {"a.bin": b"\0\1", "log.1": b"x"}), write("control", {"a.bin": b"\0\2", "log.2": b"x"})
    found, remarks = compare_files(twin, control, write("killed", {"a.bin": b"\0\3", "log.3": b"x", "log.4": b"x"}))
    assert found == []
    assert len(remarks) == 2


def test_archive_is_compared_by_what_it_holds(write: Write) -> None:
    shared = (0.9, 0.999)
    one, other = archive({"a": shared, "b": shared}), archive({"a": (0.9, 0.999), "b": (0.9, float("0.999"))})
    assert one != other, "the same values, but other bytes"
    twin = write("twin", {"x.pt": one, "y.pt": archive({"step": 3}), "z.pt": archive(1)})
    killed = write("killed", {"x.pt": other, "y.pt": archive({"step": 4}), "z.pt": archive(1, b"12345679")})
    found, _ = compare_files(twin, None, killed)
    assert [one.what for one in found] == ["y.pt", "z.pt"]
    assert "4 instead of 3" in found[0].detail
    assert found[1].detail.startswith("data/0")


class Harmful:
    """Its pickle writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_in_an_archive_is_run(write: Write, tmp_path: Path) -> None:
    files = write("twin", {"x.pt": archive([Harmful(tmp_path / "harm"), OrderedDict(a=1)])})
    assert read_archive(files["x.pt"]) is not None
    assert not (tmp_path / "harm").exists()
