"""Entries that tests of the log append, and what is found of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.bare_log import BareLog, expected_step
from tranlogs.base.types import dense
from tranlogs.log.layout import Payload
from tranlogs.log.reader import Record, SegmentReader
from tranlogs.log.record_body import EncodedBody
from tranlogs.log.record_format import RecordKind
from tranlogs.log.writer import WriteAheadLog


def expected(steps: range, size: int = 100) -> list[object]:
    return [entry for step in steps for entry in expected_step(step, size)]


ONES = Payload.of([("w", dense(np.ones(1000)))])


def whole(log: WriteAheadLog, body: Any) -> EncodedBody:
    return log.encoder.whole(body, None)


def boundary(log: WriteAheadLog, step: int, body: dict[str, Any], **tensors: Any) -> None:
    payload = Payload.of((name, dense(values)) for name, values in tensors.items())
    log.append(RecordKind.BOUNDARY, step, payload, log.encoder.parts(body, None))


def only_entry(bare: BareLog) -> tuple[SegmentReader, Record]:
    (link,) = bare.links()
    reader = SegmentReader(link.segment.path)
    return reader, reader.decode(link.location)
