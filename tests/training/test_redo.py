"""The redo driver with a target that knows no framework, elements that a script has set, and what a difference is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

from tranlogs.base.errors import CorruptRecord
from tranlogs.log.record_format import RecordKind
from tranlogs.training import (
    StateDigests,
    compare_environments,
    decode_entries,
    describe_difference,
    redo_in_order,
)
from tranlogs.training.comparison import Difference, Kind


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


def record(step: int, *digests: int, kind: RecordKind = RecordKind.STEP, of: str = "gradients") -> tuple[Any, dict[str, Any]]:
    entry = SimpleNamespace(
        step=step, kind=kind, digests=np.array(digests, "<u8").tobytes(), reader=SimpleNamespace(path=Path("log"))
    )
    return entry, {"record": of}


IMAGE = RecordKind.IMAGE


@pytest.mark.parametrize(
    ("records", "done", "differs"),
    [
        (
            [record(1, 1, 2), record(1, kind=IMAGE, of="image"), record(2, 1, 2, of="weights")],
            ["step 1", "digests 1", "image 1", "image 2", "digests 2"],
            None,
        ),
        # Later steps are applied without comparison.
        (
            [record(1, 1, 2), record(2, 1, 3), record(3, 9, 9)],
            ["step 1", "digests 1", "step 2", "digests 2", "step 3"],
            (2, "b"),
        ),
        ([record(4, 1)], ["step 4", "digests 4"], (4, "the number of parameters")),
    ],
)
def test_records_are_applied_by_kind_and_compared(records: list[Any], done: list[str], differs: Any) -> None:
    target, ticks = Target(), list[int]()
    found = redo_in_order(target, records, ticks.append)
    assert target.done == done
    assert ticks == list(range(1, len(records) + 1))
    assert (None if found is None else (found.step, found.tensor)) == differs


def test_a_record_of_unknown_kind_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="unknown kind 'riddle'"):
        redo_in_order(Target(), [record(1, of="riddle")], lambda done: None)


def test_a_body_that_entries_share_is_decoded_once() -> None:
    reader, calls = object(), list[Any]()
    entries: list[Any] = [SimpleNamespace(reader=reader, body_key=key) for key in (7, 7, 8)]
    decoded = decode_entries(lambda entry: calls.append(entry) or {}, entries)
    assert calls == [entries[0], entries[2]]
    assert decoded[0][1] is decoded[1][1]


def test_only_labelled_keys_of_an_environment_are_compared() -> None:
    (found,) = compare_environments({"torch": "1", "threads": 2}, {"torch": "2", "threads": 3}, {"torch": "torch version"})
    assert found.startswith("torch version differs: the run was recorded with '1', now it is '2'")


NAN = float("nan")


REMEMBERED = "tracked.remember(...).values."


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        *((Difference(1507, kind, "grad/h.11.weight", "differs", ratio=0.2), "optimizer.") for kind in get_args(Kind)),
        (Difference(73, "state", f"{REMEMBERED}it", "is 1, and 73 in the record"), "The script assigns it after recover()"),
        (Difference(73, "state", f"{REMEMBERED}seen[1][0].a", "is 1.5", ratio=0.1), "optimizer.remember_times(seen=...)"),
        (
            Difference(6, "state", f"{REMEMBERED}it", "is 8", ratio=0.1, is_outside=True),
            "Change state.it after optimizer.step()",
        ),
        (Difference(3, "gradients", "grad/a", "differs", ratio=1e-7), "torch.use_deterministic_algorithms(True)"),
        (Difference(3, "state", "tracked.a", "is 2.1", may_be_time=True), "a measured time is never the same twice"),
        (Difference(3, "state", "tracked.batch_time.val", "is 0.1"), "leave out of track(...) what measures times"),
    ],
)
def test_a_difference_of_the_unit_that_was_computed_again_is_told_with_the_line_to_write(
    difference: Difference, words: str
) -> None:
    text = describe_difference(difference)
    assert text.startswith(f"the last batch before the crash (step {difference.step}) was computed again, and ")
    assert text.endswith("The recorded state holds, so no finished step is lost")
    assert words in text
