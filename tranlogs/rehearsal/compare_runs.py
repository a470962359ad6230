"""Comparison of two runs: their logs, step by step, and their states where the rehearsal has ended; differences by name."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from ..base.errors import DataError
from ..base.types import Array, Extension, SparseArray
from ..checkpoints import Checkpoint
from ..encoding.tree import to_numpy
from ..journal import JournalPaths
from ..log.reader import Record, SegmentReader
from ..log.record_format import RecordKind
from ..rebuild_catalog import rebuild_catalog
from ..recovery.history import Link
from ..recovery.journal_facts import read_facts
from ..training.loop_state.number_lists import as_list

Kind = Literal[
    "recheck",
    "gradients",
    "hyper-parameters",
    "random state",
    "data position",
    "tracked state",
    "buffers",
    "state",
    "weights",
    "printed",
    "numbers in a file",
    "file",
]

# Two starts of a script that trains the same way do not differ in these.
ESSENTIAL: tuple[Kind, ...] = ("gradients", "hyper-parameters", "random state", "data position", "buffers", "weights")


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the run that was killed and the one that was not.

    Attributes:
        kind: what differs.
        what: its name: a tensor, a path within a state, a file.
        detail: how it differs, in words.
        step: the step at which it shows first; None if it belongs to no step.
    """

    kind: Kind
    what: str
    detail: str = ""
    step: int | None = None

    def __str__(self) -> str:
        place = "" if self.step is None else f" at step {self.step}"
        return f"{self.kind}{place}: {self.what}" + (f" ({self.detail})" if self.detail else "")


def find_differences(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each difference between two decoded values, and what differs there."""
    a, b = as_list(a), as_list(b)
    if type(a) is not type(b):
        yield path, f"{_brief(b)} instead of {_brief(a)}"
    elif isinstance(a, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            inner = f"{path}.{key}" if path else str(key)
            if key in a and key in b:
                yield from find_differences(a[key], b[key], inner)
            else:
                yield inner, "missing" if key in a else "not there without a kill"
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            yield path, f"{len(b)} values instead of {len(a)}"
        else:
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                yield from find_differences(x, y, f"{path}[{i}]")
    elif isinstance(a, SparseArray):
        yield from find_differences((a.indices, a.values), (b.indices, b.values), path)
    elif isinstance(a, (Array, np.ndarray)):
        if a.shape != b.shape or _bytes_of(a) != _bytes_of(b):
            yield path, describe_arrays(a, b)
    elif isinstance(a, Extension):
        yield from find_differences((a.tag, a.value), (b.tag, b.value), path)
    elif not (a == b or (a != a and b != b)):
        yield path, f"{_brief(b)} instead of {_brief(a)}"


def find_difference(a: Any, b: Any, path: str = "") -> tuple[str, str] | None:
    """Return the first difference between two decoded values; None if they are equal."""
    return next(find_differences(a, b, path), None)


def describe_arrays(a: Any, b: Any) -> str:
    """Return in words how two arrays differ."""
    if tuple(a.shape) != tuple(b.shape):
        return f"shape {tuple(b.shape)} instead of {tuple(a.shape)}"
    try:
        x, y = (np.asarray(to_numpy(v) if isinstance(v, Array) else v).astype(np.float64) for v in (a, b))
    except (TypeError, ValueError, KeyError):
        return "other bytes"
    if x.size == 1:
        return f"{y.item():.9g} instead of {x.item():.9g}"
    apart = float(np.nanmax(np.abs(x - y))) if x.size else 0.0
    return f"up to {apart:.3g} apart"


def _bytes_of(array: Any) -> bytes:
    data = array.data if isinstance(array, Array) else np.ascontiguousarray(array).view(np.uint8)
    return bytes(np.ascontiguousarray(data).tobytes())


def _brief(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return f"other {len(value)} bytes"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_FIRST = "step-0000000000-*"
_PARTS: dict[str, Kind] = {
    "rng": "random state",
    "data": "data position",
    "tracked": "tracked state",
    "buffers": "buffers",
    "after": "hyper-parameters",
}
# What a boundary notes of what this process has learned, and not of the training. Gradients that wait for a step are among it:
# the gradients of that step show them.
_BOOKKEEPING = {"flags", "waiting", "turns", "is_implicit", "start_rng", "log"}
_CAVEATS = {"doubts"}
Key = tuple[int, int, int]  # step, kind of the record, number among those


def copy_start(source: Path, target: Path) -> bool:
    """Make runs that are before their first step, as those of another folder were; return False if one of them cannot be.

    A script that draws its first weights without a seed then begins with the same ones, as it would after a crash.
    """
    has_all = True
    for journal in sorted(source.glob("*/rank*")):
        first = sorted((journal / "checkpoints").glob(_FIRST))
        if not first:
            has_all = False
            continue
        paths = JournalPaths(target / journal.relative_to(source))
        paths.log.mkdir(parents=True)
        shutil.copytree(first[0], paths.checkpoints / first[0].name)
        rebuild_catalog(paths.folder)
    for linked in source.glob("*/*"):
        if linked.is_symlink():
            (target / linked.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / linked.relative_to(source)).symlink_to(linked.resolve())
    return has_all


def compare_runs(twin: Path, other: Path, ignored: Collection[tuple[Kind, str]] = ()) -> list[Difference]:
    """Return how the runs in one folder differ from those in another: the first differences of each.

    Args:
        twin: folder with the runs of the script that was not killed.
        other: folder with the same runs of another start of the script.
        ignored: kinds and names of what is not compared.
    """
    found = []
    for journal in sorted(twin.glob("*/rank*")):
        name = str(journal.relative_to(twin))
        if not (other / name / "log").is_dir():
            found.append(Difference("state", f"run {name}", "it was not written"))
            continue
        for differences in (_compare_logs(journal, other / name), _compare_states(journal, other / name)):
            kept = (one for one in differences if (one.kind, one.what) not in ignored)
            found += [one for one in [next(kept, None)] if one is not None]
    return found


def find_unsteady(twin: Path, control: Path) -> set[tuple[Kind, str]]:
    """Return kinds and names of what differs in two runs without a kill, such as a measured time in a trainer's history."""
    found = set()
    for journal in sorted(twin.glob("*/rank*")):
        other = control / journal.relative_to(twin)
        if (other / "log").is_dir():
            for one in chain(_compare_logs(journal, other), _compare_states(journal, other)):
                found.add((one.kind, one.what))
    return found


# Logs.


def _compare_logs(twin: Path, other: Path) -> Iterator[Difference]:
    """Yield the differences between the records of two journals, in order."""
    ours, theirs = _read_records(twin), _read_records(other)
    for key in sorted(ours):
        if key not in theirs:
            continue
        a_link, b_link = ours[key], theirs[key]
        with _open(a_link) as a_file, _open(b_link) as b_file:
            a, b = a_file.decode(a_link.location), b_file.decode(b_link.location)
            if a.kind != RecordKind.BOUNDARY:
                yield from _compare_steps(a, b)
            if a.kind.is_boundary:
                yield from _compare_boundaries(a, b)


def _read_records(folder: Path) -> dict[Key, Link]:
    """Return the committed records of a journal's newest timeline."""
    history = read_facts(folder).build_history()
    found: dict[Key, Link] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for link in (link for run in history.runs for link in run):
        place = link.step, int(link.kind)
        found[(*place, counts[place])] = link
        counts[place] += 1
    return found


def _open(link: Link) -> SegmentReader:
    return SegmentReader(link.segment.path, link.segment.locations)


def _compare_steps(a: Record, b: Record) -> Iterator[Difference]:
    step = a.step
    for path, detail in find_differences(_without_form(a.body()), _without_form(b.body())):
        yield Difference("hyper-parameters", path, detail, step)
    if a.layout.names != b.layout.names:
        yield Difference("gradients", "other tensors have gradients", "", step)
    elif xxhash.xxh3_64_digest(a.read_all().data) != xxhash.xxh3_64_digest(b.read_all().data):
        for i, name in enumerate(a.layout.names):
            x, y = a.read_slot(i), b.read_slot(i)
            if (found := find_difference(x, y)) is not None:
                detail = found[1] if x is None or y is None else describe_arrays(x, y)
                yield Difference("gradients", name.removeprefix("grad/"), detail, step)


def _compare_boundaries(a: Record, b: Record) -> Iterator[Difference]:
    if a.kind == RecordKind.BOUNDARY and a.digests != b.digests:  # of steps that have no records of their own
        yield Difference("weights", "the weights after the step", "", a.step)
    if a.parts() == b.parts() and not a.arrays():
        return
    ours, theirs = a.boundary(), b.boundary()
    for name in ours:
        if name in _BOOKKEEPING:
            continue
        for path, detail in _find_state(ours[name], theirs.get(name), name):
            yield Difference(_PARTS.get(name, "state"), path, detail, a.step)


def _find_state(a: Any, b: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the differences of a part of a boundary, without those of caveats: a resumed process may have more of them."""
    for path, detail in find_differences(a, b, name):
        if not any(word in _CAVEATS for word in path.split(".")):
            yield path, detail


def _without_form(body: Any) -> Any:
    """Return the body of a step without how it was fingerprinted, which depends on the time that steps take."""
    return {key: value for key, value in body.items() if key != "fingerprint"} if isinstance(body, dict) else body


# States.


def _compare_states(twin: Path, other: Path) -> Iterator[Difference]:
    """Yield the differences between the newest checkpoints that two journals have of the same step."""
    ours, theirs = _checkpoints(twin), _checkpoints(other)
    step = max(ours.keys() & theirs.keys(), default=0)
    if not step:
        return
    try:
        with Checkpoint(ours[step]) as a, Checkpoint(theirs[step]) as b:
            there = set(b.names())
            for name in a.names():
                if name.startswith("aux/"):  # large arrays of the state, which are compared with it
                    continue
                found = find_difference(a.read(name), b.read(name)) if name in there else ("", "missing")
                if found is not None:
                    yield Difference("weights", name.removeprefix("param/"), found[1], step)
            x, y = a.meta(), b.meta()
    except DataError as error:
        yield Difference("state", "the checkpoint cannot be read", str(error), step)
        return
    for path, detail in find_differences(x.get("optimizers"), y.get("optimizers"), "optimizers"):
        yield Difference("state", path, detail, step)
    ours_left, theirs_left = x.get("boundary", {}), y.get("boundary", {})
    for name in ours_left:
        if name not in _BOOKKEEPING:
            for path, detail in _find_state(ours_left[name], theirs_left.get(name), name):
                yield Difference(_PARTS.get(name, "state"), path, detail, step)


def _checkpoints(folder: Path) -> dict[int, Path]:
    return {int(path.name.split("-")[1]): path for path in sorted((folder / "checkpoints").glob("step-*"))}
