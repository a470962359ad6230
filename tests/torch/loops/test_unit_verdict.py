"""What follows for all ranks from what each has found in a unit that was computed again: case by case."""

from __future__ import annotations

from tranlogs_torch.loops.recovery.unit_verdict import UnitOutcome, UnitVerdict, conclude

UNDERWAY, EQUAL = UnitOutcome(False), UnitOutcome(True)
ROUNDED, WRONG = UnitOutcome(True, "it rounds otherwise", False), UnitOutcome(False, "it has another batch", True)


def test_all_ranks_are_equal_or_none_is() -> None:
    assert conclude([EQUAL]) == conclude([EQUAL] * 3) == UnitVerdict("equal")
    assert conclude([EQUAL, WRONG]) == UnitVerdict("different", ("rank 1: it has another batch",), True)
    assert conclude([ROUNDED, EQUAL]) == UnitVerdict("different", ("rank 0: it rounds otherwise",), False)


def test_a_text_that_is_the_same_on_all_ranks_is_told_once() -> None:
    assert conclude([WRONG]) == conclude([WRONG] * 4) == UnitVerdict("different", ("it has another batch",), True)


def test_the_texts_of_many_ranks_are_counted() -> None:
    verdict = conclude([EQUAL, *[UnitOutcome(True, f"differs {n}", n == 3) for n in range(1, 6)]])
    assert verdict is not None
    assert verdict.texts == ("rank 1: differs 1", "rank 2: differs 2", "3 more ranks differ from their records, too")
    assert verdict.is_wrong


def test_nothing_is_concluded_in_the_middle_of_a_unit() -> None:
    assert conclude([UNDERWAY, UNDERWAY]) is None
    verdict = conclude([EQUAL, UNDERWAY])
    assert verdict is not None
    assert verdict.kind == "different"
    assert "rank 1 has not come to the end of its unit" in verdict.texts[0]


def test_a_change_on_purpose_comes_before_all_else() -> None:
    verdict = conclude([WRONG, UnitOutcome(True, "differs", True, is_changed=True)])
    assert verdict is not None
    assert (verdict.kind, verdict.texts) == (
        "dropped",
        ("the script has changed weights, hyper-parameters or other state before its loop on rank 1",),
    )
