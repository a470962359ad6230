"""Which unit all ranks compute again, and why none: a pure decision, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.recovery.group.test_agreement import lost, summarize
from tranlogs.recovery.group.decide import Damage, GroupTarget, choose_target, group_by_generation
from tranlogs.recovery.group.plan import UnitSummary, choose_unit_start, find_obstacle, name_rank
from tranlogs.recovery.group.summary import JournalSummary

UNIT = UnitSummary(7, 1, "sb")


def journals(*checkpoints: list[int]) -> list[JournalSummary]:
    """Journals of two ranks with a boundary after each of 8 steps."""
    return [replace(summarize(rank, 8, given), world=2) for rank, given in enumerate(checkpoints or ([0, 4], [0, 4]))]


def chosen(
    summaries: list[JournalSummary], units: list[UnitSummary], damage: Damage | None = None
) -> tuple[GroupTarget | None, str]:
    generations = group_by_generation(summaries)
    target = choose_target(generations, Damage())
    assert target is not None
    return choose_unit_start(generations, target, units, damage or Damage())


def test_all_ranks_resume_before_a_unit_that_is_the_same_on_all() -> None:
    start, why = chosen(journals(), [UNIT, UNIT])
    assert why == ""
    assert start is not None
    assert (start.agreement.step, start.agreement.boundary_number) == (7, 1)


def test_a_rank_whose_log_begins_at_a_checkpoint_before_the_unit_takes_part() -> None:
    start, why = chosen(journals([0, 4], [0, 7]), [UNIT, replace(UNIT, number=0)])
    assert why == ""
    assert start is not None
    assert [base and base.ref.step for base in start.agreement.bases] == [7, 7], "ranks are equal: the newer one serves both"


@pytest.mark.parametrize(
    ("units", "why"),
    [
        ([UNIT, UnitSummary()], "on rank 1 the log does not hold the newest one with a step"),
        ([UnitSummary(), UnitSummary()], "the log does not hold the newest one with a step"),
        ([UNIT, replace(UNIT, kinds="ssb")], "the newest units of the ranks do not have the same steps and boundaries"),
        ([UNIT, replace(UNIT, step=6)], "the newest units of the ranks do not have the same steps and boundaries"),
        ([UNIT, replace(UNIT, number=2)], "the ranks do not have the same boundaries before the newest unit"),
    ],
)
def test_other_units_are_not_computed_again(units: list[UnitSummary], why: str) -> None:
    assert chosen(journals(), units) == (None, why)


def test_checkpoints_must_lead_to_the_begin_of_the_unit() -> None:
    why = "the checkpoints of the ranks do not lead to its begin"
    assert chosen(journals([8], [8]), [UNIT, UNIT]) == (None, why)
    damage = Damage(boundaries={(0, 7)})
    assert chosen(journals(), [UNIT, UNIT], damage) == (None, why)


def test_another_group_computes_other_bits() -> None:
    (target,) = [choose_target(group_by_generation(journals()), Damage())]
    assert target is not None
    assert find_obstacle(target, 2, is_resharded=False) == ""
    assert find_obstacle(target, 1, is_resharded=False) == "2 processes recorded the run, now there is 1"
    assert find_obstacle(target, 3, is_resharded=False) == "2 processes recorded the run, now there are 3"
    assert find_obstacle(target, 2, is_resharded=True) == "parameters are sharded in another way now"
    assert find_obstacle(replace(target, is_newest=False), 2, is_resharded=False).startswith("the run resumes before its last")


def test_a_rank_without_journal_computes_nothing_again() -> None:
    gone = choose_target(group_by_generation([journals()[0], replace(lost(1), world=2)]), Damage())
    assert gone is not None
    assert find_obstacle(gone, 2, is_resharded=False) == "the journal of rank 1 is lost or damaged"


def test_a_rank_is_named_unless_all_say_the_same() -> None:
    assert name_rank(["", "", ""]) == ""
    assert name_rank(["it fails", "it fails"]) == "it fails"
    assert name_rank(["", "it fails", "it fails, too"]) == "on rank 1 it fails"
