"""Runs in a process of its own for test_corruption.py: breaks copies of a run and looks what becomes of them.

    python corruption.py FOLDER BASE FIRST COUNT
    python corruption.py FOLDER regions FIRST COUNT
    python corruption.py FOLDER metas FIRST COUNT

The first form breaks something at random. The second one breaks each region of a segment and of the catalog's file in COUNT
ways. The third one flips bit after bit of the two pages from which LMDB finds everything in the catalog, and then uses it.
Prints a line a case: its seed, what was broken, and how it ended ("failed" with a reason, else what happened).
A base of the name "small-..." has small tensors, several of them in one piece, and takes a third of the time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import random
import shutil
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from tests.kills.launchers import in_child
from tests.support import damage
from tests.support.toy import ToyState, ToyTrainer, open_toy
from tests.support.verify import problems_of
from tranlogs.base.config import JournalConfig
from tranlogs.base.errors import TranLogsError
from tranlogs.catalog import (
    CATALOG_NAME,
    Catalog,
    CommonRow,
    Incident,
    PrunedRow,
    StoreRow,
    Tables,
)
from tranlogs.checkpoints.folder import MANIFEST
from tranlogs.log import record_format
from tranlogs.log.reader import Record, SegmentReader
from tranlogs.log.record_format import HEAD, Location, RecordKind
from tranlogs.log.record_rows import RecordRow, add_records
from tranlogs.recovery.history import build_history
from tranlogs.recovery.journal_facts import read_catalog, read_facts
from tranlogs.retention import EverySteps, KeepLatest

LAST = 66  # step at which the runs that are broken end
OLDER = 62  # step of the older copies of log files
LARGE, SMALL = (7, 3000, 40_000), (7, 300, 2500)  # sizes of tensors
META_BYTES = 152  # of a meta page: LMDB's page header, and what it keeps of the environment


def sizes_of(run: Path) -> tuple[int, ...]:
    return SMALL if run.parent.name.startswith("small-") else LARGE


def open_run(run: Path) -> ToyTrainer:
    return open_toy(
        run, sizes=sizes_of(run), config=JournalConfig(segment_bytes=1 << 20), policy=EverySteps(20), retention=KeepLatest(2)
    )


def train_closed(run: Path) -> None:
    """A run that was ended in order."""
    _in_child(run, lambda trainer: (trainer.train(LAST, _keeping_log(run, trainer)), trainer.journal.close()))


def train_killed(run: Path) -> None:
    """A run whose process died by SIGKILL."""
    _in_child(run, lambda trainer: trainer.train(LAST, _keeping_log(run, trainer)))


def train_forked(run: Path) -> None:
    """A run that was taken back to an older step and went on on another timeline."""
    _in_child(run, lambda trainer: trainer.train(55))
    _in_child(run, lambda trainer: trainer.train(LAST, _keeping_log(run, trainer)), step=50)


def train_with_all_rows(run: Path) -> None:
    """A run that died, whose newest steps have all kinds of records, and whose catalog has all kinds of rows and of pages."""

    def roll(trainer: ToyTrainer, step: int) -> None:
        trainer.journal.wait_checkpoint()
        if step in (62, 64) and trainer.journal.log.wal is not None:
            trainer.journal.log.wal.roll()

    _in_child(run, lambda trainer: trainer.train(LAST, partial(roll, trainer)))
    catalog = Catalog.open(run / "rank0", writable=True)
    for number in range(1, 50):  # in several transactions, so that pages become free
        with catalog.transaction() as tables:
            tables.put(f"incident/{number:06d}", Incident(number, "why" * (1000 if number % 20 == 0 else 20), 0, 0.0, 1, 1.0))
    with catalog.transaction() as tables:
        tables.put("common", CommonRow(0))
        tables.put("pruned", PrunedRow())
        tables.put("store", StoreRow("file:///nowhere", "me"))
        tables.put_request("seal", {"age_seconds": 1000.0, "until": 0.0})
    catalog.close()


BASES: dict[str, Callable[[Path], None]] = {
    "closed": train_closed,
    "killed": train_killed,
    "forked": train_forked,
    "all-rows": train_with_all_rows,
}


def _keeping_log(run: Path, trainer: ToyTrainer) -> Callable[[int], None]:
    """Copies the log beside the run when it is at step OLDER."""

    def say(step: int) -> None:
        if sizes_of(run) == SMALL and step % 7 == 0 and trainer.journal.log.wal is not None:
            trainer.journal.log.wal.roll()  # else all would lie in two segments
        if step == OLDER:
            (run.parent / "older").mkdir()
            for path in (run / "rank0" / "log").glob("*.seg"):
                with contextlib.suppress(FileNotFoundError):  # being recycled just now
                    shutil.copy(path, run.parent / "older")

    return say


def _in_child(run: Path, work: Callable[[ToyTrainer], object], step: int | None = None) -> None:
    def live() -> None:
        trainer = open_run(run)
        trainer.recover(step)
        work(trainer)
        trainer.journal.wait_checkpoint()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(live) == -signal.SIGKILL


class Base:
    """A sound run, an older copy of it, and which of its bytes matter."""

    def __init__(self, name: str, folder: Path) -> None:
        self.run, self.older = folder / "run", folder / "older"
        BASES[name.removeprefix("small-")](self.run)
        sound = [str(finding) for finding in problems_of(self.run)]
        assert not sound, sound
        state = ToyState(sizes_of(self.run))
        self.states = [state.everything()]
        for step in range(1, LAST + 40):
            state.take_step(step)
            self.states.append(state.everything())
        for path in files_of(self.run):
            _copy_sparse(str(path), f"{path}.sparse")
            os.replace(f"{path}.sparse", path)
        self.catalog = read_catalog(self.run / "rank0")
        self.checkpoints = sorted((row.step for row in self.catalog.checkpoints), reverse=True)
        self.oldest = min(row.sequence for row in self.catalog.checkpoints)
        self.entries: dict[str, list[Place]] = {path.name: [] for path in self.run.rglob("*.seg")}
        self._map_segments()

    def _map_segments(self) -> None:
        """Where the heads, payloads and frames of the entries lie that recovery can reach."""
        facts = read_facts(self.run / "rank0")
        history = build_history(facts.segments, facts.rows.limits)
        reachable = {link.location for run in history.runs for link in run}
        for segment in facts.segments:
            with SegmentReader(segment.path) as reader:
                for location in segment.locations:
                    if location.head.kind == RecordKind.SEGMENT or location in reachable:
                        arrays = [(row[0], row[0] + row[1]) for _, row in reader.decode(location).arrays()]
                        self.entries[segment.path.name].append(Place(location, arrays))

    def is_open(self, name: str) -> bool:
        """Whether a segment was not sealed: a log that ends earlier looks the same."""
        return all(row.state != "sealed" for row in self.catalog.segments if row.file == name)

    def is_ready(self, name: str) -> bool:
        """Whether the process died before the catalog knew that a segment is written."""
        return any(row.state == "ready" for row in self.catalog.segments if row.file == name)


class Place:
    """Where a record lies; `arrays` are those of its body, which may lie before it."""

    def __init__(self, location: Location, arrays: list[damage.Span]) -> None:
        self.head = location.head
        start, payload, description = location.offset, location.payload_offset, location.description_offset
        self.finding = [(start, payload)]
        self.spans = [(start, description + self.head.description_bytes), *arrays]
        self.interesting = [start, start + 36, start + 40, payload, description, description + 24]
        self.interesting += [at for at, _ in arrays]


Choice = Callable[[Base, Path, random.Random], tuple[list[Path], str, int]]


def files_of(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file())


def choose(base: Base, run: Path, rnd: random.Random) -> tuple[list[Path], str, int]:
    """Break something: the files that were touched, what was done in words, and the step where recovery must land at least."""
    newest = base.checkpoints[0]
    files = files_of(run)
    segments = [path for path in files if path.suffix == ".seg"]
    checkpoints = [path for path in files if "checkpoints" in path.parts]
    catalog = run / "rank0" / CATALOG_NAME
    kinds, weights = (
        ("segment", "checkpoint", "catalog", "owner", "folder", "swap", "older"),
        (40, 16, 20, 4, 4, 6, 8),
    )
    kind = rnd.choices(kinds, weights)[0]
    if kind == "folder":
        path = rnd.choice(sorted({path.parent for path in [*checkpoints, *segments]}))
        shutil.rmtree(path)
        return [path], f"{path.name} deleted", newest if path.name == "log" else LAST
    if kind == "swap":
        alike = rnd.choice((segments, checkpoints, [catalog, *segments, *checkpoints]))
        first, second = rnd.sample(alike, 2)
        return [first, second], damage.swap(first, second), 0
    if kind == "older":
        kept = [path for path in segments if (base.older / path.name).exists()]
        return stale_file(run, rnd, catalog) if rnd.random() < 0.5 or not kept else older_segment(base, rnd.choice(kept))
    if kind == "segment" and rnd.random() < 0.15:
        return lying_length(base, rnd, rnd.choice(segments))
    others = [path for path in files if path.name.startswith("owner") or "lock" in path.name]
    path = rnd.choice({"segment": segments, "checkpoint": checkpoints, "catalog": [catalog], "owner": others}[kind])
    size = path.stat().st_size
    span = (0, max(size, 1))
    if kind == "segment" and rnd.random() < 0.9:
        places = base.entries[path.name]
        at = rnd.choice(rnd.choice(places).interesting) if places else 0
        used = max((stop for place in places for _, stop in place.spans), default=size)
        span = (at, min(size, at + 8)) if rnd.random() < 0.5 else (0, used)
    if kind == "catalog" and rnd.random() < 0.5:
        at = rnd.randrange(size // 4096) * 4096
        span = (at, at + 200)
    if size == 0:
        return [path], damage.extend(path, rnd, span), LAST
    how = rnd.choices(damage.ALL, (6, 4, 4, 3, 2, 1, 1))[0]
    return [path], how(path, rnd, span), newest if kind == "segment" else LAST


def older_segment(base: Base, path: Path) -> tuple[list[Path], str, int]:
    """A segment as it was some steps ago."""
    shutil.copyfile(base.older / path.name, path)
    return [path], f"{path.name} replaced by an older copy", OLDER


def lying_length(base: Base, rnd: random.Random, path: Path) -> tuple[list[Path], str, int]:
    """A head whose lengths lie, with a checksum that is right."""
    places = base.entries[path.name]
    if not places:
        return [path], "nothing", LAST
    place = rnd.choice(places)
    at, what = place.finding[0][0], rnd.choice((36, 40))
    length = rnd.choice((0, 1, 64, 4096, 1 << 20, (1 << 28) - 1, (1 << 28) + 1, (1 << 31) - 1))
    with path.open("r+b") as file:
        raw = bytearray(file.read())
        raw[at + what : at + what + (4 if what == 36 else 8)] = length.to_bytes(4 if what == 36 else 8, "little")
        head = bytes(raw[at : at + 4]) + bytes(4) + bytes(raw[at + 8 : at + HEAD.size])
        raw[at + 4 : at + 8] = (record_format.checksum_of(head) & 0xFFFFFFFF).to_bytes(4, "little")
        file.seek(at)
        file.write(raw[at : at + HEAD.size])
    return [path], f"a length in the head at byte {at} of {path.name} garbled: {length}", base.checkpoints[0]


def stale_file(run: Path, rnd: random.Random, catalog: Path) -> tuple[list[Path], str, int]:
    """An LMDB file as it was some steps ago: its rows are sound, but the other files have gone on."""
    until = LAST + rnd.choice((1, 5, 30))
    trainer = open_run(run)
    shutil.copyfile(catalog, run / "stale")
    trainer.recover()
    trainer.train(until)
    trainer.journal.close()
    os.replace(run / "stale", catalog)
    return [catalog], f"{catalog.name} replaced by the one of step {LAST}, {until - LAST} steps ago", until


WAYS = (damage.flip_bit, damage.garble_range, damage.zero_range)


def regions_of(base: Base) -> list[tuple[Path, str, Sequence[damage.Span]]]:
    """Each region of the catalog's file and of the segments, with its places in one file."""
    catalog = base.run / "rank0" / CATALOG_NAME
    found = [(catalog, region, spans) for region, spans in lmdb_regions(catalog).items()]
    newest = max(row.sequence for row in base.catalog.checkpoints)
    for segment in read_facts(base.run / "rank0").segments:
        needed = [one for one in segment.locations if one.head.sequence > newest or one.head.kind == RecordKind.SEGMENT]
        if needed[-1].head.sequence > newest:
            found += [(segment.path, region, spans) for region, spans in segment_regions(segment.path, needed).items()]
    return sorted({region: (path, region, spans) for path, region, spans in found}.values())


def break_region(
    base: Base, run: Path, rnd: random.Random, path: Path, region: str, spans: Sequence[damage.Span], way: int
) -> tuple[list[Path], str, int]:
    """Break a region; where it stands and what it costs at most, as `choose` does. Zeros instead of zeros are no damage."""
    target, before = run / path.relative_to(base.run), path.read_bytes()
    start, end = rnd.choice(spans)
    done, raw = "", bytearray(before)
    for how in (WAYS[way % len(WAYS)], damage.garble_range):
        if raw != before:
            break
        done = how(target, rnd, (start, end))
        raw = bytearray(target.read_bytes())
        raw[:start], raw[end:] = before[:start], before[end:]  # what has hit the neighbours, too
        target.write_bytes(raw)
    is_harmless = path.suffix != ".seg" or region in HARMLESS
    return [target], f"{region}: {done}", LAST if is_harmless else base.checkpoints[0]


def must_be_named(base: Base, run: Path, touched: list[Path]) -> bool:
    """Whether bytes that matter differ now."""
    return any(_matters(base, base.run / path.relative_to(run), path) for path in touched)


def _matters(base: Base, before: Path, now: Path) -> bool:
    if before.suffix == ".seg" and not base.entries[before.name]:
        return False
    if before.suffix == ".seg" and before.is_file() and not now.exists() and base.is_ready(before.name):
        return _entries_matter(base, before.name, before.read_bytes(), b"")  # for the catalog it was never written
    if not before.is_file() or not now.is_file():
        return before.suffix == ".seg" or before.name == "log" or "checkpoints" in before.parts
    old, new = before.read_bytes(), now.read_bytes()
    if before.suffix == ".seg":
        is_longer = base.is_open(before.name) and len(new) > len(old)  # a long record makes an open one longer, too
        return (len(old) != len(new) and not is_longer) or _entries_matter(base, before.name, old, new)
    if before.name == MANIFEST:
        return bool(_as_json(old) != _as_json(new))
    return "checkpoints" in before.parts and old != new


def _entries_matter(base: Base, name: str, old: bytes, new: bytes) -> bool:
    def differs(spans: list[damage.Span]) -> bool:
        return any(old[slice(*span)] != new[slice(*span)] for span in spans)

    def matters(place: Place) -> bool:
        if place.head.kind != RecordKind.SEGMENT and place.head.sequence <= base.oldest:  # needed by nobody, checked if found
            return not differs(place.finding) and differs(place.spans)
        return differs(place.spans)

    places = base.entries[name]
    if places[-1].head.sequence <= base.oldest:
        places = [place for place in places if place.head.kind != RecordKind.SEGMENT]
    if not base.is_open(name):
        return any(map(matters, places))
    left = max((i for i, place in enumerate(places) if not differs(place.finding)), default=-1)
    if any(map(matters, places[: left + 1])):
        return True
    found = itertools.chain(places[: left + 1], *(other for file, other in base.entries.items() if file != name))
    steps = [place.head.step for place in found if place.head.kind.is_boundary]
    return max([*steps, *base.checkpoints]) < base.catalog.watermarks.committed


def _as_json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def recover_and_go_on(base: Base, run: Path) -> tuple[str, float]:
    """Recover, compare, train on, recover again; gives what happened, and the seconds of the first recovery."""
    start = time.monotonic()
    trainer = open_run(run)
    try:
        report = trainer.recover()
        seconds = time.monotonic() - start
        assert trainer.state.everything() == base.states[report.step], f"the state at step {report.step} is WRONG"
        assert report.exact is True, "not exact"
        until = report.step + 8
        trainer.train(until)
    finally:
        trainer.journal.close()
    again = open_run(run)
    try:
        second = again.recover()
        assert second.step == until, f"trained to {until}, came back to {second.step}"
        assert again.state.everything() == base.states[until], f"the state at step {until} is WRONG"
    finally:
        again.journal.close()
    return f"recovered to step {report.step}", seconds


def try_case(base: Base, run: Path, seed: int, choose: Choice) -> dict[str, Any]:
    rnd = random.Random(seed)
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(base.run, run, copy_function=_copy_sparse)
    case: dict[str, Any] = {"seed": seed}
    try:
        touched, case["damage"], least = choose(base, run, rnd)
        case["is_changed"] = any(not path.is_file() or path.read_bytes() != _sound_bytes(base, run, path) for path in touched)
        problems = problems_of(run)
        named = {problem.path.name for problem in problems} | {problem.path.parent.name for problem in problems}
        if must_be_named(base, run, touched):
            assert named & {path.name for path in touched}, f"verify names {sorted(map(str, problems))}"
        if not any(problem.path.name == CATALOG_NAME for problem in problems) and "ago" not in case["damage"]:
            assert read_catalog(run / "rank0") == base.catalog, "the catalog says something else, and verify is silent"
        case["problems"] = [str(problem) for problem in problems]
        case["outcome"], case["seconds"] = recover_and_go_on(base, run)
        landed = int(case["outcome"].split()[-1])
        assert landed >= least, f"landed on step {landed} only, not {least}"
    except TranLogsError as error:
        case["outcome"] = f"refused: {error}"
        if least:
            case["failed"] = f"refused, though all else is sound: {error!r}"
    except BaseException:
        case["failed"] = traceback.format_exc()
    return case


def _sound_bytes(base: Base, run: Path, path: Path) -> bytes | None:
    sound = base.run / path.relative_to(run)
    return sound.read_bytes() if sound.is_file() else None


def try_meta_bit(folder: Path, sound: bytes, size: int, bit: int) -> dict[str, Any]:
    """Use a catalog in whose meta pages one bit differs."""
    page, at = divmod(bit // 8, META_BYTES)
    broken = bytearray(sound)
    broken[page * 4096 + at] ^= 1 << bit % 8
    (folder / CATALOG_NAME).write_bytes(broken)
    os.truncate(folder / CATALOG_NAME, size)
    case: dict[str, Any] = {"seed": bit, "damage": f"bit {bit % 8} of byte {at} of meta page {page}"}
    try:
        catalog = Catalog.open(folder, writable=True)
        try:
            catalog.read(Tables.check)
            for i in range(2):  # each meta page is written
                with catalog.transaction() as tables:
                    tables.put(f"incident/{i:06d}", Incident(i, "why" * 300, 0, 0.0))
                    add_records(tables, [RecordRow(1, 10 + i, 64 * i, 64 * i + 64, bytes(HEAD.size))])
            assert len(catalog.incidents()) == 2
            case["outcome"] = "used"
        finally:
            catalog.close()
    except TranLogsError:
        case["outcome"] = "refused"
    except BaseException:
        case["failed"] = traceback.format_exc()
    return case


def _copy_sparse(source: str, target: str) -> None:
    """Only what is not zero: half of a segment is not used yet, and a copy has holes there."""
    with open(source, "rb") as reader, open(target, "wb") as writer:
        size, at = os.fstat(reader.fileno()).st_size, 0
        with contextlib.suppress(OSError):  # no data behind the last of it
            while at < size:
                start = reader.seek(at, os.SEEK_DATA)
                at = reader.seek(start, os.SEEK_HOLE)
                _copy_range(reader, writer, start, at)
        writer.truncate(size)


def _copy_range(reader: IO[bytes], writer: IO[bytes], start: int, stop: int) -> None:
    for at in range(start, stop, 1 << 16):
        reader.seek(at)
        block = reader.read(min(1 << 16, stop - at))
        if block.count(0) < len(block):
            writer.seek(at)
            writer.write(block)


# Every region of a segment and of an LMDB file, with all places where a file has it: what damage can hit.

_PAGE, _HEADER = 4096, 16  # bytes of a page of LMDB, and of its header
_BRANCH, _LEAF = 1, 2  # flags of a page
_IS_BIG = 1  # flag of a node whose value lies in overflow pages


Regions = dict[str, list[damage.Span]]


def segment_regions(path: Path, locations: Sequence[Location]) -> Regions:
    """Map a segment's records, what lies between them, and what lies behind them."""
    found: Regions = {}

    def add(region: str, start: int, end: int) -> None:
        if start < end:
            found.setdefault(region, []).append((start, end))

    with SegmentReader(path) as reader:
        for location in locations:
            head, kind = location.head, location.head.kind.name
            end = location.description_offset + head.description_bytes
            arrays = sorted((row[0], row[0] + row[1]) for row in _arrays_within(reader.decode(location), location))
            payload_end = min([location.description_offset, *(start for start, _ in arrays)])
            add(f"head of {kind}", location.offset, location.payload_offset)
            add(f"payload of {kind}", location.payload_offset, payload_end)
            for span in arrays:
                add(f"array in the body of {kind}", *span)
            add(f"description of {kind}", location.description_offset, end)
            add("padding", end, location.end)
    add("space behind the last record", locations[-1].end, path.stat().st_size)
    return found


def _arrays_within(entry: Record, location: Location) -> Iterator[tuple[int, int]]:
    """Yield place and length of the arrays that lie in this record, and not in one that it refers to."""
    for _, row in entry.arrays():
        if location.payload_offset <= row[0] < location.end:
            yield row[0], row[1]


def segment_region_names() -> set[str]:
    """Return the regions that segments of a run with records of all kinds have."""
    names = {f"{part} of {kind.name}" for kind in RecordKind for part in ("head", "description")}
    names |= {f"payload of {kind.name}" for kind in (RecordKind.STEP, RecordKind.UNIT, RecordKind.IMAGE)}
    ends = {f"array in the body of {kind.name}" for kind in RecordKind if kind.is_boundary}
    return names | ends | HARMLESS


HARMLESS = {"padding", "space behind the last record"}


LMDB_REGIONS = {
    "newest meta page",
    "older meta page",
    "header of a branch page",
    "header of a leaf page",
    "header of an overflow page",
    "pointers of a page",
    "unused part of a page",
    "header of a node",
    "key of a row",
    "list of free pages",
    "free page",
    "space behind the last page",
}


def lmdb_regions(path: Path) -> Regions:
    """Map the pages of an LMDB file. The rows are regions by kind: "row segment/", "row watermarks".

    LMDB's structures are in its mdb.c: MDB_page, MDB_meta, MDB_db, MDB_node.
    """
    raw, found = path.read_bytes(), Regions()

    def add(region: str, start: int, end: int) -> None:
        if start < end:
            found.setdefault(region, []).append((start, end))

    def walk(page: int, is_free_list: bool) -> None:
        at = page * _PAGE
        (flags, lower, upper) = struct.unpack_from("<HHH", raw, at + 10)
        assert flags in (_BRANCH, _LEAF), f"page {page} has flags {flags}"
        add(f"header of a {'branch' if flags == _BRANCH else 'leaf'} page", at, at + _HEADER)
        add("pointers of a page", at + _HEADER, at + lower)
        add("unused part of a page", at + lower, at + upper)
        for (pointer,) in struct.iter_unpack("<H", raw[at + _HEADER : at + lower]):
            node = at + pointer
            low, high, node_flags, key_bytes = struct.unpack_from("<HHHH", raw, node)
            add("header of a node", node, node + 8)
            key_end = node + 8 + key_bytes
            if flags == _BRANCH:
                add("key of a row", node + 8, key_end)
                walk(low | high << 16 | node_flags << 32, is_free_list)
                continue
            key, nbytes, value = raw[node + 8 : key_end], low | high << 16, key_end
            if node_flags & _IS_BIG:
                (big,) = struct.unpack_from("<Q", raw, value)
                add("header of an overflow page", big * _PAGE, big * _PAGE + _HEADER)
                value = big * _PAGE + _HEADER
            if is_free_list:
                add("list of free pages", node + 8, value + nbytes)
                (count,) = struct.unpack_from("<Q", raw, value)
                for free in struct.unpack_from(f"<{count}Q", raw, value + 8):
                    add("free page", free * _PAGE, (free + 1) * _PAGE)
                continue
            add("key of a row", node + 8, key_end)
            name, slash, _ = key.decode().partition("/")
            add(f"row {name}{slash}", value, value + nbytes)

    metas = sorted(range(2), key=lambda page: int(struct.unpack_from("<Q", raw, page * _PAGE + 144)[0]))
    newest = metas[1] * _PAGE
    add("older meta page", metas[0] * _PAGE, metas[0] * _PAGE + 152)
    add("newest meta page", newest, newest + 152)
    free_root, root, last_page = struct.unpack_from("<Q40xQQ", raw, newest + 80)
    for tree, is_free_list in ((root, False), (free_root, True)):
        if tree != (1 << 64) - 1:
            walk(tree, is_free_list)
    add("space behind the last page", (last_page + 1) * _PAGE, len(raw))
    return found


def main(folder: str, name: str, first: str, count: str) -> None:
    logging.disable()
    cases = range(int(first), int(first) + int(count))
    if name == "metas":
        train_closed(Path(folder) / "run")
        raw = (Path(folder) / "run" / "rank0" / CATALOG_NAME).read_bytes()
        sound = raw.rstrip(b"\0")
        for bit in cases:
            print(json.dumps(try_meta_bit(Path(folder), sound, len(raw), bit)), flush=True)
        return
    if name == "regions":
        base = Base("small-all-rows", Path(folder) / "small-all-rows")
        for number, (path, region, spans) in enumerate(regions_of(base)):
            for seed in cases:
                broken = partial(break_region, path=path, region=region, spans=spans, way=number + seed)
                case = try_case(base, base.run.with_name("case"), 1000 * number + seed, broken)
                print(json.dumps({"region": region, **case}), flush=True)
        return
    base = Base(name, Path(folder) / name)
    for seed in cases:
        print(json.dumps(try_case(base, Path(folder) / name / "case", seed, choose)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
