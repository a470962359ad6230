"""What a loop is that a script enters: a table of facts and decisions."""

from __future__ import annotations

from typing import Any

import pytest

from tranlogs.base.errors import UsageError
from tranlogs.training import LoopRecord, LoopSequence, name_loop

E, B = "epochs(...) in main()", "batches(...) in main()"
LANDED = LoopRecord((E, B), b"\0\1", is_open=True, length=6, start={"taken": 10}, source="loader")
ENDED = LoopRecord((E, B), b"\0\1", is_open=False, length=6, start={"taken": 10}, source="loader")


@pytest.mark.parametrize(
    ("landed", "newest", "entered", "decisions", "length"),
    [
        (LoopRecord(), 0, [E], ["new"], 9),
        (LoopRecord(), 0, [E, B, E], ["new", "new", "new"], 9),
        (LANDED, 0, [E, B], ["finished", "running"], 9),
        (LANDED, 2, [E, B], ["finished", "running"], 9),
        (LANDED, 3, [E, B], ["finished", "running"], 6),
        (LANDED, 0, [E, B, E], ["finished", "running", "new"], 9),
        (ENDED, 0, [E, B, B], ["finished", "finished", "new"], 9),
    ],
)
def test_decisions(landed: LoopRecord, newest: int, entered: list[str], decisions: list[str], length: int) -> None:
    sequence = LoopSequence()
    sequence.land(landed.as_body())
    found = []
    for name in entered:
        found.append(sequence.enter(name, 9, dict, "loader", newest=newest))
        sequence.leave()
    assert found == decisions
    assert sequence.current.length == length
    assert sequence.current.count == max(len(entered), landed.count)


def enter(names: list[str], landed: LoopRecord, *, source: str = "loader", leaves: bool = True) -> Any:
    sequence = LoopSequence()
    sequence.land(landed.as_body())
    for name in names:
        sequence.demand_none_running(name)
        sequence.enter(name, 9, dict, source)
        if leaves:
            sequence.leave()
    return sequence


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (
            lambda: enter([B], LANDED),
            r"loop 1 of the run was optimizer.epochs\(...\) in main\(\), and is now optimizer.batches",
        ),
        (lambda: enter([E, E], LANDED), "loop 2 of the run was optimizer.batches"),
        (lambda: enter([E, B], LANDED, source="other"), "took its batches from 'loader', and now from 'other'"),
        (lambda: enter([E, B], LoopRecord(), leaves=False), "runs inside another"),
    ],
)
def test_refusals(refused: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        refused()


def test_record_says_whether_the_loop_runs() -> None:
    sequence = enter([E], LoopRecord(), leaves=False)
    assert sequence.read().is_open
    sequence.leave()
    assert not sequence.read().is_open
    assert LoopRecord.read(sequence.read().as_body()) == sequence.read()


def test_script_that_ends_before_the_recorded_loop_is_told() -> None:
    assert "ended before it entered loop 2" in enter([E], LANDED).describe_unreached()
    assert enter([E, B], LANDED).describe_unreached() == ""
    assert name_loop("steps", "<module>") == "steps(...) in the script"
