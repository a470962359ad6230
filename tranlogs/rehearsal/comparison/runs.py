"""Comparison of two runs: their logs, step by step, and their states where the rehearsal has ended."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from ...base.errors import DataError
from ...catalog.lineage import trace_lineage
from ...checkpoints import Checkpoint
from ...journal import JournalPaths
from ...log.entry import Entry
from ...log.reader import SegmentReader
from ...log.record import EntryKind
from ...rebuild_catalog import rebuild_catalog
from ...recovery.history import Link, build_history
from ...recovery.journal_facts import read_facts
from .differences import Difference, Kind, describe_arrays, find_difference

_FIRST = "step-0000000000-*"
_PARTS: dict[str, Kind] = {
    "rng": "random state",
    "data": "data position",
    "tracked": "tracked state",
    "buffers": "buffers",
    "after": "hyper-parameters",
}
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


def compare_runs(twin: Path, other: Path) -> list[Difference]:
    """Return how the runs in one folder differ from those in another: the first ones."""
    found = []
    for journal in sorted(twin.glob("*/rank*")):
        name = str(journal.relative_to(twin))
        if not (other / name / "log").is_dir():
            found.append(Difference("state", f"run {name}", "the killed script has not written it"))
            continue
        first = next(_compare_logs(journal, other / name), None)
        last = _compare_states(journal, other / name)
        found += [difference for difference in (first, last) if difference is not None]
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
            if a.kind == EntryKind.BOUNDARY:
                yield from _compare_boundaries(a, b)
            else:
                yield from _compare_steps(a, b)


def _read_records(folder: Path) -> dict[Key, Link]:
    """Return the committed records of a journal's newest timeline."""
    facts = read_facts(folder)
    history = build_history(facts.segments, trace_lineage(facts.timelines, facts.timeline))
    found: dict[Key, Link] = {}
    counts: Counter[tuple[int, int]] = Counter()
    for link in (link for run in history.runs for link in run):
        place = link.step, int(link.kind)
        found[(*place, counts[place])] = link
        counts[place] += 1
    return found


def _open(link: Link) -> SegmentReader:
    return SegmentReader(link.segment.path, link.segment.locations)


def _compare_steps(a: Entry, b: Entry) -> Iterator[Difference]:
    step = a.step
    body = find_difference(_without_form(a.body()), _without_form(b.body()))
    if body is not None:
        yield Difference("hyper-parameters", body[0].removeprefix("hyper"), body[1], step)
    if a.tensor_names() != b.tensor_names():
        yield Difference("gradients", "other tensors have gradients", "", step)
    elif xxhash.xxh3_64_digest(a.read_all().data) != xxhash.xxh3_64_digest(b.read_all().data):
        for name in a.tensor_names():
            x, y = a.read(name), b.read(name)
            if (found := find_difference(x, y)) is not None:
                detail = found[1] if x is None or y is None else describe_arrays(x, y)
                yield Difference("gradients", name.removeprefix("grad/"), detail, step)
                return


def _compare_boundaries(a: Entry, b: Entry) -> Iterator[Difference]:
    ours, theirs = a.parts(), b.parts()
    has_arrays = bool(a.arrays())
    for name in ours:
        if ours[name] == theirs.get(name) and not has_arrays:
            continue
        found = find_difference(a.part(name), b.part(name))
        if found is not None:
            yield Difference(_PARTS.get(name, "state"), ".".join(filter(None, (name, found[0]))), found[1], a.step)


def _without_form(body: Any) -> Any:
    """Return the body of a step without how it was fingerprinted, which depends on the time that steps take."""
    return {key: value for key, value in body.items() if key != "fingerprint"} if isinstance(body, dict) else body


# States.


def _compare_states(twin: Path, other: Path) -> Difference | None:
    """Compare the newest checkpoints that two journals have of the same step."""
    ours, theirs = _checkpoints(twin), _checkpoints(other)
    common = sorted(ours.keys() & theirs.keys())
    if not common or common[-1] == 0:
        return None
    step = common[-1]
    try:
        with Checkpoint(ours[step]) as a, Checkpoint(theirs[step]) as b:
            for name in a.names():
                if name.startswith("aux/"):
                    continue
                if name not in set(b.names()):
                    return Difference("weights", name, "missing", step)
                if (found := find_difference(a.read(name), b.read(name))) is not None:
                    return Difference("weights", name.removeprefix("param/"), found[1], step)
            x, y = a.meta(), b.meta()
    except DataError as error:
        return Difference("state", "the checkpoint cannot be read", str(error), step)
    for part in ("optimizers", "boundary"):
        if (found := find_difference(x.get(part), y.get(part), part)) is not None:
            return Difference("state", found[0], found[1], step)
    return None


def _checkpoints(folder: Path) -> dict[int, Path]:
    return {int(path.name.split("-")[1]): path for path in sorted((folder / "checkpoints").glob("step-*"))}
