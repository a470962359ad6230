"""Fetching from a store: a whole journal (`pull`), a journal that is missing on this machine, or a damaged file.

Every byte is compared with the digest that was taken at the upload. A file is replaced by a rename once it is complete. A
journal is written to a temporary folder, which is renamed at the end: a pull that dies leaves nothing that looks like a
journal, and the next pull continues with its files.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import xxhash

from ..base.atomic_files import make_folder, sync_folder
from ..base.errors import CorruptObject, NotARun, StoreUnavailable, TranLogsError, UsageError, error_text
from ..base.failpoints import hit
from ..catalog import Catalog, SegmentRow, StoreRow, Watermarks, segment_key, timeline_key
from ..catalog.rows import is_on_lineage
from ..journal import JournalPaths
from ..recovery.journal_facts import JournalRows, read_facts, read_rows
from ..recovery.recovery_plan import plan_recovery
from ..stores import STALL_SECONDS, Store, TimeoutStore, open_store
from .manifest import (
    Manifest,
    ShippedItem,
    journal_prefix,
    manifest_names,
    parse_manifest_name,
    read_first_sound,
    read_newest,
    write_local,
)
from .plan import find_chain, find_recoverable_step, list_contents

_log = logging.getLogger("tranlogs")

Progress = Callable[[str, int, int], None]

_SUFFIX = ".pulling"
_THREADS = 4
_ATTEMPTS_MAX = 3  # Once a newer manifest is published, objects of an older one may be deleted while they are read.
_PAUSES = (1.0, 4.0, 0.0)  # seconds after each failed attempt to fetch a damaged file


# A whole journal.


@dataclass(slots=True)
class PullResult:
    """Result of a pull: `step` is the step that recovery reaches from the fetched files.

    `steps_lost` is the number of steps that the store's manifest names and that could not be read. `notes` tells what could not
    be read, one sentence each. `nbytes` were read from the store.
    """

    folder: Path
    step: int = 0
    steps_lost: int = 0
    checkpoint_step: int = 0
    nbytes: int = 0
    notes: list[str] = field(default_factory=list)


def fetch_missing_journal(url: str | None, paths: JournalPaths, progress: Progress | None = None) -> PullResult | None:
    """Fetch a journal from the store if it is missing on this machine; return None if it exists, or the store has none.

    Raises:
        StoreUnavailable: the store does not answer. A run that may exist in the store must not start from step 0.
        StoreRefused: the store's address is wrong.
        CorruptObject: the store holds the journal, but none of its checkpoints can be read.
    """
    if url is None or paths.folder.exists():
        return None
    with TimeoutStore(open_store(url), STALL_SECONDS) as store:
        prefix = journal_prefix(paths)
        try:
            store.check_root()
            newest, damaged = read_newest(store, prefix)
        except StoreUnavailable as error:
            why = f"{error.why}. {paths.folder} does not exist, and the store may hold the run: nothing was started"
            raise StoreUnavailable(error.url, why) from None
        if newest is None and damaged:  # The store holds the run, which must not start from step 0.
            raise CorruptObject(f"{url}/{prefix}", f"none of its manifests can be read: {'; '.join(damaged)}")
        if newest is None:
            return None
        try:
            found = pull(store, prefix, paths.folder, progress=progress)
        except NotARun:  # The first checkpoint was never uploaded.
            return None
    _log.warning("%s: fetched from %s/%s, up to step %d", paths.folder, url, prefix, found.step)
    for note in found.notes:
        _log.warning("%s: %s", paths.folder, note)
    return found


def pull(store: Store, prefix: str, folder: Path, *, everything: bool = False, progress: Progress | None = None) -> PullResult:
    """Fetch the journal at `prefix` ("RUN/rank0") into `folder`, which must not exist.

    `everything` fetches all that the store holds, not only what recovery to the newest step needs. `progress` is called with
    ("pull", bytes done, total bytes).

    Raises:
        UsageError: the folder exists.
        NotARun: the store holds no such journal.
        CorruptObject: none of the journal's checkpoints can be read.
        StoreUnavailable: the store does not answer.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists already; pull into another run folder, or move this one away")
    names = manifest_names(store, prefix)
    newest, _, notes = read_first_sound(store, names)
    for _ in range(_ATTEMPTS_MAX):
        manifest = newest
        if manifest is None:
            why = f"the store {store.url} holds no journal at {prefix}" + "".join(f"; {note}" for note in notes)
            raise NotARun(folder, why, "Use the address of a run in it: URL/RUN")
        result = PullResult(folder, notes=notes)
        reader = _ItemReader(store, _temporary_folder(folder, manifest), progress, result)
        stored = _fetch_items(reader, manifest, everything)
        if stored and not result.steps_lost:
            break
        names = manifest_names(store, prefix)
        newest, _, notes = read_first_sound(store, names)  # objects may be missing because a newer manifest does not name them
        if newest is not None and newest.number == manifest.number:
            break
    assert manifest is not None
    if not manifest.checkpoints:
        raise NotARun(folder, f"the store {store.url} holds no checkpoint of this journal yet", "")
    if not stored:
        why = "none of its checkpoints can be read: " + "; ".join(result.notes)
        raise CorruptObject(
            f"{store.url}/{prefix}", why if result.notes else "it has no checkpoint yet that leads to its newest timeline"
        )
    # The newest manifest may be unreadable. This journal's next manifest follows it.
    row = StoreRow(store.url, secrets.token_hex(8), parse_manifest_name(names[0])[0], manifest.at)
    _publish_journal(reader, manifest, stored, row)
    return result


def _temporary_folder(folder: Path, manifest: Manifest) -> Path:
    """Return the folder for the files of a pull, without files of an earlier pull that this manifest does not name."""
    target = folder.with_name(folder.name + _SUFFIX)
    make_folder(target / "log")
    make_folder(target / "checkpoints")
    for path in [*(target / "log").iterdir(), *(target / "checkpoints").iterdir()]:
        if path.name not in manifest.shipped:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in target.glob("catalog.lmdb*"):
        path.unlink()
    return target


def _fetch_items(reader: _ItemReader, manifest: Manifest, everything: bool) -> list[ShippedItem]:
    """Download the newest intact checkpoint, and the log after it; return what the store holds of the journal's history.

    These are the items that were not found to be unreadable, and that do not extend past the step that was reached. There are
    none if no checkpoint can be read.
    """
    contents, items, result = list_contents(manifest), list(manifest.shipped.values()), reader.result
    if everything:
        reader.read(items)
    limits = contents.limits
    checkpoints = [row for row in contents.checkpoints if is_on_lineage(row, limits)]
    expected = find_recoverable_step(checkpoints, manifest.segments, manifest.timelines, limits)
    for row in sorted(checkpoints, key=lambda row: row.sequence, reverse=True):
        chain = find_chain(row, manifest.segments, manifest.timelines, limits)
        reader.read([manifest.shipped[row.name], *chain])
        if row.name in reader.unreadable:
            result.notes.append(f"the checkpoint of step {row.step} cannot be read; an older one is used if there is one")
            continue
        while not reader.read(chain):
            sound = [item for item in manifest.segments if item.name not in reader.unreadable]
            chain = find_chain(row, sound, manifest.timelines, limits)
        result.checkpoint_step, result.step = row.step, find_recoverable_step([row], chain, manifest.timelines, limits)
        result.steps_lost = max(expected - result.step, 0)
        end = max([row.sequence, *(item.boundary_sequence for item in chain)])
        return [
            item
            for item in items
            if item.name not in reader.unreadable and (item in chain or not result.steps_lost or not _extends_past(item, end))
        ]
    return []


def _extends_past(item: ShippedItem, end: int) -> bool:
    """Return True if an item belongs to the part of the log that could not be read, before which the journal now continues."""
    return isinstance(item.row, SegmentRow) and item.end_sequence > end


@dataclass(slots=True)
class _ItemReader:
    """Downloads items into a folder, each once. `done` and `unreadable` are the names of those that were tried."""

    store: Store
    target: Path
    progress: Progress | None
    result: PullResult
    done: set[str] = field(default_factory=set)
    unreadable: set[str] = field(default_factory=set)

    def read(self, items: Sequence[ShippedItem]) -> bool:
        """Read the items that were not tried yet; return True if all items were read."""
        todo = [item for item in items if item.name not in self.done | self.unreadable]
        total, at = sum(item.nbytes for item in todo), 0
        with ThreadPoolExecutor(_THREADS, "tranlogs-pull") as pool:
            for item, result in [(item, pool.submit(_fetch_item, self.store, item, self.target)) for item in todo]:
                try:
                    self.result.nbytes += result.result()
                    self.done.add(item.name)
                except CorruptObject as error:
                    self.result.notes.append(str(error))
                    self.unreadable.add(item.name)
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
                at += item.nbytes
                if self.progress is not None:
                    self.progress("pull", at, total)
        return self.done.issuperset(item.name for item in items)


def _publish_journal(reader: _ItemReader, manifest: Manifest, stored: Sequence[ShippedItem], row: StoreRow) -> None:
    """Write the catalog of the fetched files, and rename the temporary folder to the journal's name."""
    target, result = reader.target, reader.result
    with Catalog.open(target, writable=True) as catalog:
        with catalog.transaction() as tables:
            tables.put("run", manifest.run)
            for timeline in manifest.timelines:
                tables.put(timeline_key(timeline.number), timeline)
            for item in stored:
                if item.name not in reader.done:
                    continue
                if isinstance(item.row, SegmentRow):
                    size = (target / "log" / item.row.file).stat().st_size
                    tables.put(segment_key(item.row.ordinal), replace(item.row, state="sealed", size=size, used_bytes=size))
                else:
                    tables.put(f"checkpoint/{item.row.name}", item.row)
            tables.put("store", row)
        _check_recovery(target, result)
        with catalog.transaction() as tables:
            tables.put("watermarks", Watermarks(result.step, result.step, result.step, result.step, manifest.at))
    write_local(target, replace(manifest, shipped={item.name: item for item in stored}))
    (target / "catalog.lmdb-lock").unlink(missing_ok=True)
    sync_folder(target)
    hit("pull.publish")
    os.rename(target, result.folder)  # commit point
    sync_folder(result.folder.parent)
    _log.info("%s: pulled from %s, up to step %d", result.folder, row.url, result.step)


def _check_recovery(target: Path, result: PullResult) -> None:
    """Plan a recovery from the fetched files, and correct the result if the recovery ends at an earlier step."""
    facts = read_facts(target)
    plan = plan_recovery(facts.checkpoints, facts.build_history(), facts.rows.limits)
    if plan.end.step < result.step:
        result.notes.append(f"expected the fetched log to end at step {result.step}, it ends at step {plan.end.step}")
        result.steps_lost += result.step - plan.end.step
        result.step = plan.end.step


# A damaged file.


class StoreCopies:
    """The store's copies of one journal's files. The store is opened when a file is found to be damaged.

    If `url` is None, the store is the one that the catalog names, if it names one.
    """

    def __init__(self, paths: JournalPaths, url: str | None = None) -> None:
        self._paths, self._url = paths, url
        self._manifest: Manifest | None = None
        self._is_given_up = False
        self._asked: set[str] = set()  # names of segments and checkpoints

    def replace(self, name: str) -> str:
        """Replace a damaged segment (named by its file) or checkpoint (named by its folder) by the store's copy.

        Return the source of the copy, in words; "" if there is no copy, or if the file is intact. No error is raised: recovery
        continues without the store, and a warning is logged. Each name is tried once.
        """
        if name in self._asked or self._is_given_up:
            return ""
        self._asked.add(name)
        rows = read_rows(self._paths.folder)
        self._url = self._url or (rows.store.url if rows.store is not None else None)
        if self._url is None:
            return ""
        for pause in _PAUSES:
            try:
                return self._replace(name, rows)
            except (TranLogsError, OSError) as error:
                is_final = not isinstance(error, (StoreUnavailable, OSError))
                when = "" if is_final else " now"
                self._warn("cannot fetch a copy of %s from %s%s: %s", name, self._url, when, error_text(error))
                if is_final:
                    return ""
                time.sleep(pause)
        self._is_given_up = True  # For all damaged files: recovery must not wait for each of them.
        return ""

    def _replace(self, name: str, rows: JournalRows) -> str:
        assert self._url is not None
        with TimeoutStore(open_store(self._url), STALL_SECONDS) as store:
            if self._manifest is None:
                self._manifest, _ = read_newest(store, journal_prefix(self._paths))
            item = None if self._manifest is None else self._manifest.shipped.get(name)
            if item is None or self._manifest is None:
                self._warn("the store %s has no copy of %s", store.url, name)
            elif not _is_same_item(rows, self._manifest, item):
                self._warn("the store %s holds %s of another run, or of another history of this run; not used", store.url, name)
            elif _fetch_item(store, item, self._paths.folder, is_preallocated=True):
                self._warn("%s was damaged, and was replaced by the copy in %s", name, store.url)
                return f"the store {store.url}"
            return ""

    def _warn(self, text: str, *values: object) -> None:
        _log.warning(f"%s: {text}", self._paths.folder, *values)


def _is_same_item(rows: JournalRows, manifest: Manifest, item: ShippedItem) -> bool:
    """Return True if an item of the store is the one that a journal lists, or a longer version of it.

    A copy of the run's folder that was trained on has other items under the same names.
    """
    if manifest.run.run_id != rows.run.run_id:
        return False
    stored = item.row
    if isinstance(stored, SegmentRow):
        return any(
            (row.file, row.segment_id, row.base_sequence) == (stored.file, stored.segment_id, stored.base_sequence)
            and stored.last_sequence >= row.last_sequence
            for row in rows.segments
        )
    found = {(row.name, row.sequence, row.chain, row.timeline) for row in rows.checkpoints}
    return (stored.name, stored.sequence, stored.chain, stored.timeline) in found


# The files of one segment or checkpoint.


def _fetch_item(store: Store, item: ShippedItem, journal: Path, *, is_preallocated: bool = False) -> int:
    """Download the files of one segment or checkpoint that are missing locally or differ; return the number of bytes read.

    `is_preallocated` makes a segment's file as large as it was preallocated, and not only as large as it was used. After an
    error the local files are unchanged.

    Raises:
        CorruptObject: the store has lost an object, or the object differs.
        OSError: the disk is full or fails.
        StoreUnavailable: the store does not answer.
    """
    row = item.row
    folder = journal / "log" if isinstance(row, SegmentRow) else journal / "checkpoints" / item.name
    size = row.size if isinstance(row, SegmentRow) and is_preallocated else 0
    make_folder(folder)
    nbytes = 0
    try:
        for name, parts in item.files.items():
            if not _is_intact(folder / name, parts, size):
                nbytes += _fetch_file(store, folder / name, parts, size)
    except BaseException:
        if not isinstance(row, SegmentRow):
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()
        raise
    if nbytes:
        sync_folder(folder)
    return nbytes


def _is_intact(path: Path, parts: Sequence[Sequence[Any]], size: int) -> bool:
    """Return True if a file has the size and the content that were uploaded."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size >= size and all(
                _digest(file, nbytes) == digest for _, nbytes, digest in parts
            )
    except OSError:  # what the disk cannot read is as good as missing
        return False


def _digest(file: BinaryIO, nbytes: int) -> str:
    found, left = xxhash.xxh3_128(), nbytes
    while left and (data := file.read(min(left, 1 << 20))):
        found.update(data)
        left -= len(data)
    return found.hexdigest()


class _DigestWriter:
    """A file for writing that computes the digest of what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest, self.nbytes = file, xxhash.xxh3_128(), 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.nbytes += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self.nbytes


def _fetch_file(store: Store, path: Path, parts: Sequence[Sequence[Any]], size: int) -> int:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            for name, nbytes, digest in parts:
                into = _DigestWriter(file)
                store.get(name, cast(BinaryIO, into))
                if into.nbytes != nbytes:
                    raise CorruptObject(f"{store.url}/{name}", f"expected {nbytes} bytes, found {into.nbytes}")
                if into.digest.hexdigest() != digest:
                    raise CorruptObject(f"{store.url}/{name}", "the checksum of its content differs")
            nbytes = file.tell()
            file.truncate(max(size, nbytes))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # commit point
        return nbytes
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
