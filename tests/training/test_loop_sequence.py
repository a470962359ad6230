"""What a loop is that a script enters: a table of facts and decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tranlogs.base.errors import UsageError
from tranlogs.training import LoopRecord, LoopSequence, name_loop

E, B = "epochs(...) in main()", "batches(...) in main()"
LANDED = LoopRecord((E, B), b"\0\1", is_open=True, length=6, start={"taken": 10}, source="loader", before=(9,))
NONE = LoopRecord()
LATER = LoopRecord((E, B), b"\0\1\1", is_open=True, length=3, source="loader", before=(9, 6))
ENDED = replace(LANDED, is_open=False)


@pytest.mark.parametrize(
    ("landed", "newest", "entered", "decisions", "length"),
    [
        (NONE, NONE, [E], ["new"], 9),
        (NONE, NONE, [E, B, E], ["new", "new", "new"], 9),
        (LANDED, NONE, [E, B], ["finished", "running"], 9),
        (LANDED, LANDED, [E, B], ["finished", "running"], 9),
        (LANDED, NONE, [E, B, E], ["finished", "running", "new"], 9),
        (ENDED, NONE, [E, B, B], ["finished", "finished", "new"], 9),
    ],
)
def test_decisions(landed: LoopRecord, newest: LoopRecord, entered: list[str], decisions: list[str], length: int) -> None:
    sequence = LoopSequence()
    sequence.land(landed.as_body())
    found = []
    for name in entered:
        found.append(sequence.enter(name, 9, dict, "loader", newest=newest))
        sequence.leave()
    assert found == decisions
    assert sequence.current.length == length
    assert sequence.current.count == max(len(entered), landed.count)


def enter(
    names: list[str],
    landed: LoopRecord,
    *,
    source: str = "loader",
    leaves: bool = True,
    length: int | None = 9,
    newest: LoopRecord = NONE,
    done: int = 0,
) -> Any:
    sequence = LoopSequence()
    sequence.land(landed.as_body())
    for name, given in zip(names, [*[9] * (len(names) - 1), length], strict=True):
        sequence.demand_none_running(name)
        sequence.enter(name, given, dict, source, newest=newest, done=done)
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
        (
            lambda: enter([E], LANDED, length=10),
            r"loop 1 of the run, optimizer.epochs\(...\) in main\(\), had 9 epochs, and now has 10",
        ),
        (lambda: enter([E, B], LANDED, newest=LATER), "loop 2 of the run, .* had 6 batches, and now has 9"),
        (lambda: enter([E], NONE, length=5, newest=LANDED), "loop 1 of the run, .* had 9 epochs, and now has 5"),
        (lambda: enter([B], NONE, newest=LANDED), "loop 1 of the run was optimizer.epochs"),
        (lambda: enter([E, B], replace(LANDED, length=None), newest=LATER), "had no limit of batches, and now has 9"),
    ],
)
def test_refusals(refused: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        refused()


def test_the_last_loop_may_have_another_length() -> None:
    assert enter([E, B], LANDED, length=5, done=4).current.length == 5
    assert enter([E, B], LANDED, length=5, done=4).shortened is None
    assert "had 6 batches, and now has 5, of which nothing is left" in str(enter([E, B], LANDED, length=5, done=5).shortened)
    assert enter([E, B], LANDED, length=None).current.length is None
    assert enter([E, B, B], LANDED, length=2).current.before == (9, 9)
    assert enter([E, B], ENDED, length=2).current == ENDED


def test_record_says_whether_the_loop_runs() -> None:
    sequence = enter([E], LoopRecord(), leaves=False)
    assert sequence.read().is_open
    sequence.leave()
    assert not sequence.read().is_open
    assert LoopRecord.read(sequence.read().as_body()) == sequence.read()


def test_script_that_ends_before_the_recorded_loop_is_told() -> None:
    assert "ended before it entered loop 2" in str(enter([E], LANDED).describe_unreached())
    assert enter([E, B], LANDED).describe_unreached() is None
    assert name_loop("steps", "<module>") == "steps(...) in the script"
