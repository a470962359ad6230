"""The records of a journal in order, decoded without the framework that wrote them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.config import RECORDS_CHECKED_MAX
from ...base.errors import CorruptRecord
from ...catalog import CheckpointRow
from ...catalog.rows import is_on_lineage
from ...log.reader import Record, SegmentReader
from ...recovery.history import Link, Run
from ...recovery.journal_facts import read_log, read_rows

_DESCRIBED: dict[str, Any] = {"make_array": lambda array: array, "has_data": False}


@dataclass(slots=True)
class JournalRecords:
    """The records of the newest timeline and of those that lead to it.

    Attributes:
        links: the records, in order.
        checkpoints: the checkpoints on these timelines.
        problems: what is wrong with the log, in words.
        committed: sequence number of the newest boundary.
    """

    links: Sequence[Link]
    checkpoints: list[CheckpointRow]
    problems: list[str]
    committed: int


def read_history(folder: Path) -> JournalRecords:
    """Find a journal's records, without decoding them."""
    rows = read_rows(folder)
    facts = read_log(folder, rows, checked_max=RECORDS_CHECKED_MAX)
    limits, links = rows.limits, Run.join(facts.build_history().runs)
    checkpoints = [row for row in facts.checkpoints if is_on_lineage(row, limits)]
    newest = next((link.sequence for link in reversed(links) if link.kind.is_boundary), 0)
    notes = rows.describe_files(folder) + facts.notes
    return JournalRecords(links, checkpoints, notes, max([newest, *(row.sequence for row in checkpoints)]))


def find_step(links: Sequence[Link], step: int) -> list[Link]:
    """Return the records of a step, or the one that covers it. On a lineage, steps only rise."""
    first = bisect.bisect_left(links, step, key=lambda link: link.step)
    following = (links[i] for i in range(first, len(links)))
    return list(itertools.takewhile(lambda link: link.step == step or link.step - link.covered < step, following))


def find_newest(links: Sequence[Link], count: int) -> Sequence[Link]:
    """Return the records of the newest steps; all if `count` is 0, or if there are no more steps."""
    steps = set[int]()
    for link in reversed(links) if count else ():
        steps |= {link.step} if link.kind.is_step or link.covered else set()
        if len(steps) > count:
            first = bisect.bisect_left(links, sorted(steps)[1], key=lambda link: link.step)
            return links[first:]
    return links


@dataclass(slots=True)
class RecordLine:
    """One record of the log, as `tranlogs log` lists it.

    Attributes:
        kind: gradients, weights, image, boundary or damaged.
        is_boundary: True if the record ends a unit.
        covered: the number of steps that the record covers without their tensors.
    """

    sequence: int
    step: int
    kind: str
    optimizer: str = ""
    tensors: int = 0
    stored_bytes: int = 0
    dense_bytes: int = 0
    lr: list[Any] = field(default_factory=list)
    scalars: dict[str, float] = field(default_factory=dict)
    segment: str = ""
    is_committed: bool = True
    is_boundary: bool = False
    covered: int = 0


def list_records(history: JournalRecords, wanted: Sequence[Link], problems: list[str]) -> Iterator[RecordLine]:
    """Yield a line for each record, in order; damage is appended to `problems`."""
    for link, record in _decode_records(wanted):
        committed = link.sequence <= history.committed
        if isinstance(record, CorruptRecord):
            problems.append(str(record))
            yield RecordLine(link.sequence, link.step, "damaged", segment=link.segment.path.name, is_committed=committed)
            continue
        body = _read_body(record)
        yield RecordLine(
            link.sequence,
            link.step,
            _kind_of(record, body),
            str(body.get("optimizer", "")),
            len(record.tensor_names()),
            record.stored_bytes + record.head.description_bytes,
            record.raw_bytes,
            [group["lr"] for group in body.get("hyper", []) if "lr" in group],
            record.scalars,
            link.segment.path.name,
            committed,
            link.kind.is_boundary,
            link.covered,
        )


def show_records(history: JournalRecords, wanted: Sequence[Link], problems: list[str]) -> Iterator[dict[str, Any]]:
    """Yield records in full, in order; damage is appended to `problems`."""
    for link, record in _decode_records(wanted):
        place = {
            "sequence": link.sequence,
            "step": link.step,
            "segment": link.segment.path.name,
            "offset": link.location.offset,
            "is_committed": link.sequence <= history.committed,
        }
        if isinstance(record, CorruptRecord):
            problems.append(str(record))
            yield {**place, "kind": "damaged", "problem": str(record)}
            continue
        body = _read_body(record)
        yield {
            **place,
            "kind": _kind_of(record, body),
            "is_boundary": link.kind.is_boundary,
            "covered": link.covered,
            "timeline": link.segment.row.timeline,
            "chain": f"{record.head.chain:016x}",
            "digest": f"{record.head.digest:016x}",
            "scalars": record.scalars,
            "tensors": record.describe_tensors(),
            "pieces": record.describe_pieces(),
            "body": body,
            "fingerprint_bytes": len(record.digests),
        }


def _decode_records(wanted: Sequence[Link]) -> Iterator[tuple[Link, Record | CorruptRecord]]:
    for _, group in itertools.groupby(wanted, key=lambda link: link.segment.row.ordinal):
        links = {link.sequence: link for link in group}
        first = min(links)
        segment = links[first].segment
        try:
            with SegmentReader(segment.path, segment.locations) as reader:
                for link in links.values():
                    try:
                        yield link, reader.decode(link.location)
                    except CorruptRecord as error:
                        yield link, error
        except (CorruptRecord, OSError) as error:
            found = error if isinstance(error, CorruptRecord) else CorruptRecord(segment.path, str(error))
            yield links[first], found


def _read_body(record: Record) -> dict[str, Any]:
    """Return the body of a step or an after-image, with the parts of a boundary that the record also is."""
    try:
        found = record.body(**_DESCRIBED)
        body = found if isinstance(found, dict) else {} if found is None else {"content": found}
        return {**body, **record.boundary(**_DESCRIBED)} if record.kind.is_boundary else body
    except CorruptRecord as error:
        return {"damaged": str(error)}


def _kind_of(record: Record, body: dict[str, Any]) -> str:
    return str(body.get("record", "step")) if record.kind.is_step else record.kind.name.lower()
