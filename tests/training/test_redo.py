"""The redo driver and the comparison of environments, with a target that knows no framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tranlogs.base.errors import CorruptRecord
from tranlogs.log.record_format import EntryKind
from tranlogs.training import StateDigests, compare_environments, decode_entries, redo_in_order


@dataclass
class Target:
    """Counts what is done, and has the digests that it is given."""

    compared: str = "parameters"
    done: list[str] = field(default_factory=list)
    digests: tuple[int, ...] = (1, 2)

    def write_image(self, entry: Any, body: dict[str, Any]) -> None:
        self.done.append(f"image {entry.step}")

    def apply_gradients(self, entry: Any, body: dict[str, Any]) -> None:
        self.done.append(f"step {entry.step}")

    def read_digests(self, entry: Any, body: dict[str, Any]) -> StateDigests:
        self.done.append(f"digests {entry.step}")
        return StateDigests(np.array(self.digests, np.uint64), range(len(self.digests)), ["a", "b"])


def record(step: int, *digests: int, kind: EntryKind = EntryKind.STEP, of: str = "gradients") -> tuple[Any, dict[str, Any]]:
    entry = SimpleNamespace(
        step=step, kind=kind, digests=np.array(digests, "<u8").tobytes(), reader=SimpleNamespace(path=Path("log"))
    )
    return entry, {"record": of}


def test_records_are_applied_by_kind_and_compared() -> None:
    target, ticks = Target(), []
    records = [record(1, 1, 2), record(1, kind=EntryKind.IMAGE, of="image"), record(2, 1, 2, of="weights")]
    assert redo_in_order(target, records, ticks.append) is None
    assert target.done == ["step 1", "digests 1", "image 1", "image 2", "digests 2"]
    assert ticks == [1, 2, 3]


def test_the_first_difference_is_named_and_later_steps_are_applied_without_comparison() -> None:
    target = Target()
    found = redo_in_order(target, [record(1, 1, 2), record(2, 1, 3), record(3, 9, 9)], lambda done: None)
    assert (found.step, found.tensor) == (2, "b") if found else False
    assert target.done[-2:] == ["digests 2", "step 3"]


def test_another_number_of_tensors_is_a_difference() -> None:
    found = redo_in_order(Target(compared="variables"), [record(4, 1)], lambda done: None)
    assert found is not None
    assert found.tensor == "the number of variables"


def test_a_record_of_unknown_kind_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="unknown kind 'riddle'"):
        redo_in_order(Target(), [record(1, of="riddle")], lambda done: None)


def test_a_body_that_entries_share_is_decoded_once() -> None:
    reader = object()
    entries: list[Any] = [SimpleNamespace(reader=reader, body_key=key) for key in (7, 7, 8)]
    calls: list[Any] = []

    def decode(entry: Any) -> dict[str, Any]:
        calls.append(entry)
        return {}

    decoded = decode_entries(decode, entries)
    assert calls == [entries[0], entries[2]]
    assert decoded[0][1] is decoded[1][1]


def test_only_labelled_keys_of_an_environment_are_compared() -> None:
    recorded, now = {"torch": "1", "threads": 2}, {"torch": "2", "threads": 3}
    found = compare_environments(recorded, now, {"torch": "torch version"})
    assert found == [
        "torch version differs: the run was recorded with '1', now it is '2'; "
        "what is computed from here on can round differently"
    ]
