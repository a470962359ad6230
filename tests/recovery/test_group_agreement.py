"""Where ranks land together, and which unit they compute again: pure decisions, case by case."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tranlogs.base.errors import RecoveryError
from tranlogs.recovery.group.decide import (
    WAYS,
    Agreement,
    Damage,
    GroupTarget,
    RankFacts,
    Way,
    agree,
    choose_target,
    choose_way,
    describe_lost_journals,
    group_by_generation,
)
from tranlogs.recovery.group.plan import UnitSummary, choose_unit_start, count_common, find_obstacle, name_rank
from tranlogs.recovery.group.summary import CheckpointRef, JournalSummary, LogRange


def summarize(
    rank: int,
    last: int,
    checkpoints: list[int],
    *,
    first: int = 0,
    timeline: int = 1,
    shared: bool = True,
    boundary_counts: dict[int, int] | None = None,
) -> JournalSummary:
    """A journal with a boundary after each of the steps `first` to `last`."""
    known = boundary_counts if boundary_counts is not None else {step: int(step > 0) for step in range(first, last + 1)}
    refs = tuple(CheckpointRef(step, f"step-{step}", int(step > 0), 0) for step in checkpoints)
    return JournalSummary(rank, f"/run/rank{rank}", f"id{rank}", 3, shared, timeline, (LogRange(first, last, known),), refs)


def decided(*summaries: JournalSummary, damage: Damage | None = None, step: int | None = None) -> Agreement:
    found = agree(summaries, damage or Damage(), step)
    assert found is not None
    return found


def bases(agreement: Agreement) -> list[tuple[int, int] | None]:
    """Of each rank, whose checkpoint it loads, and of which step."""
    return [None if base is None else (base.rank, base.ref.step) for base in agreement.bases]


def ranks_by(way: Way, agreement: Agreement) -> tuple[int, ...]:
    """The ranks that come to the boundary in a way."""
    return tuple(rank for rank, one in enumerate(agreement.ways) if one is way)


def test_each_combination_of_facts_has_one_row() -> None:
    """And each row a combination."""
    used = set()
    for facts in itertools.product((False, True), repeat=len(RankFacts.__slots__)):
        rows = [row for row in WAYS if all(want in (None, fact) for want, fact in zip(row[0], facts, strict=True))]
        assert len(rows) == 1, facts
        assert choose_way(RankFacts(*facts)) is rows[0][1]
        used.add(rows[0])
    assert used == set(WAYS)


def lost(rank: int) -> JournalSummary:
    return JournalSummary(rank, f"/run/rank{rank}", f"new{rank}")


def own(rank: int, last: int, checkpoints: list[int], **more: Any) -> JournalSummary:
    """A journal that has what no other rank has."""
    return summarize(rank, last, checkpoints, shared=False, **more)


def whole(rank: int, last: int, checkpoints: list[int]) -> JournalSummary:
    """A journal that has all of each step, under DistributedDataParallel."""
    return replace(summarize(rank, last, checkpoints), has_full_records=True)


def kept_by(rank: int, last: int, checkpoints: list[int]) -> JournalSummary:
    """A journal that has copies of the next rank's shares."""
    return replace(summarize(rank, last, checkpoints), copies=2)


def unlogged(rank: int, checkpoints: list[int], *recorded: int) -> JournalSummary:
    """A journal without tensors, which has recorded these steps behind its checkpoints."""
    return replace(summarize(rank, 0, checkpoints, boundary_counts={0: 0}), recorded_steps=recorded)


TWO, THREE = [summarize(rank, 9, [0, 7]) for rank in range(2)], [summarize(rank, 9, [0, 4]) for rank in range(3)]
NO_BOUNDARY = [replace(summarize(rank, 7, [7], first=7), checkpoints=(CheckpointRef(7, "step-7", 0, 0),)) for rank in (0, 2)]
LATE = JournalSummary(
    0, "/a", "a", 2, True, 1, (LogRange(0, 5, {0: 0, 5: 2}),), (CheckpointRef(0, "old", 0, 0), CheckpointRef(5, "new", 2, -1))
)
OF_7 = {(0, "step-7"), (1, "step-7")}


@dataclass
class Case:
    """What the ranks have, and where they land: `bases` are (rank, step) of the checkpoints that are loaded, by rank."""

    have: Sequence[JournalSummary]
    step: int
    bases: list[tuple[int, int] | None]
    damage: Damage = field(default_factory=Damage)
    lost: tuple[int, ...] = ()
    equal: tuple[int, ...] = ()  # ranks that take what others have logged
    copies: tuple[int, ...] = ()  # ranks whose shares others have kept
    behind: tuple[int, ...] = ()
    boundary: int = 1


CASES = {
    "the slowest counts": Case([summarize(0, 9, [0, 7]), summarize(1, 8, [0, 7])], 8, [(0, 7), (1, 7)]),
    # What the others hold begins behind the old checkpoint.
    "an old checkpoint": Case([summarize(0, 9, [4, 7], first=4), summarize(1, 9, [0])], 9, [(0, 7), (0, 7)]),
    "ranks that differ": Case([own(0, 9, [4, 7], first=4), own(1, 8, [0])], 8, [(0, 7), (1, 0)]),
    # Rank 0 wrote the first checkpoint after the ranks were found to differ; rank 1 died before its own was published.
    "the end of sameness": Case([own(0, 9, [0, 7]), summarize(1, 9, [0])], 9, [(0, 7), (1, 0)]),
    "a lost journal": Case([summarize(0, 9, [0, 7]), lost(1), summarize(2, 8, [0, 7])], 7, [(0, 7), (0, 7), (2, 7)], lost=(1,)),
    "lost, with a checkpoint of which the log does not tell": Case(
        [NO_BOUNDARY[0], lost(1), NO_BOUNDARY[1]], 7, [(0, 7), (0, 7), (2, 7)], lost=(1,)
    ),
    "lost, and one record is a share": Case(
        [whole(0, 9, [0, 4]), lost(1), whole(2, 9, [0, 4])],
        7,
        [(0, 4), (0, 4), (2, 4)],
        Damage(shards={(1, 8)}),
        lost=(1,),
        equal=(1,),
    ),
    "lost, and others are not whole": Case(
        [whole(0, 9, [0, 4]), lost(1), summarize(2, 9, [0, 4])], 4, [(0, 4), (0, 4), (2, 4)], lost=(1,)
    ),
    "died before its first checkpoint": Case(
        [own(0, 0, [0], boundary_counts={}), lost(1)], 0, [(0, 0), None], lost=(1,), boundary=0
    ),
    "several boundaries": Case(
        [summarize(rank, 5, [0], boundary_counts={0: 0, 4: 1, 5: 3 - rank}) for rank in (0, 1)],
        5,
        [(0, 0), (1, 0)],
        boundary=2,
    ),
    "a checkpoint behind the landing": Case([LATE, summarize(1, 5, [0], boundary_counts={0: 0, 5: 1})], 5, [(0, 0), (1, 0)]),
    # What is behind the checkpoint that all have is computed again.
    "without tensors": Case([unlogged(0, [0, 7], 30, 20), unlogged(1, [0, 7], 20, 10)], 7, [(0, 7), (1, 7)], boundary=0),
    "without tensors, and one has a checkpoint more": Case(
        [unlogged(0, [0, 7, 30], 30, 20), unlogged(1, [0, 7], 20, 10)], 7, [(0, 7), (1, 7)], boundary=0
    ),
    "without tensors, and one ends much earlier": Case(
        [unlogged(0, [0, 7, 30], 40, 30), unlogged(1, [0, 7], 20, 10)],
        30,
        [(0, 30), (0, 30)],
        lost=(1,),
        behind=(1,),
        boundary=0,
    ),
    "a damaged checkpoint": Case(TWO, 9, [(1, 7), (1, 7)], Damage(checkpoints={(0, "step-7")})),
    "damaged checkpoints": Case(TWO, 9, [(0, 0), (1, 0)], Damage(checkpoints=OF_7)),
    "a damaged record": Case(TWO, 8, [(0, 7), (1, 7)], Damage(records={(1, 9)})),
    "a damaged record behind the checkpoint": Case(TWO, 7, [(0, 7), (1, 7)], Damage(records={(1, 8)})),
    "a damaged boundary on the way": Case(TWO, 7, [(0, 7), (1, 7)], Damage(boundaries={(0, 8)})),
    "copies": Case(
        [kept_by(0, 9, [0, 7]), lost(1), kept_by(2, 9, [0, 7])], 9, [(0, 7), (0, 7), (2, 7)], lost=(1,), copies=(1,)
    ),
    "copies of rank 0": Case(
        [lost(0), kept_by(1, 9, [0, 7]), kept_by(2, 8, [0, 7])], 8, [(2, 7), (1, 7), (2, 7)], lost=(0,), copies=(0,)
    ),
    "two neighbours are lost": Case(
        [kept_by(0, 9, [0, 7]), lost(1), lost(2), kept_by(3, 9, [0, 7])],
        7,
        [(0, 7), (0, 7), (0, 7), (3, 7)],
        lost=(1, 2),
        copies=(1,),
    ),
    "a damaged copy": Case(
        [kept_by(0, 9, [0, 7]), lost(1), kept_by(2, 9, [0, 7])],
        8,
        [(0, 7), (0, 7), (2, 7)],
        Damage(shards={(1, 9)}),
        lost=(1,),
        copies=(1,),
    ),
    "an older journal from a store": Case(
        [summarize(0, 9, [0, 7]), summarize(1, 5, [0]), summarize(2, 9, [0, 7])],
        7,
        [(0, 7), (0, 7), (2, 7)],
        lost=(1,),
        behind=(1,),
    ),
    "an older journal, and copies": Case(
        [kept_by(0, 9, [0, 7]), summarize(1, 5, [0]), kept_by(2, 9, [0, 7])],
        9,
        [(0, 7), (0, 7), (2, 7)],
        lost=(1,),
        copies=(1,),
        behind=(1,),
    ),
    "an older journal that leads further": Case(
        [summarize(0, 9, [0, 4]), summarize(1, 5, [0]), summarize(2, 9, [0, 4])], 5, [(0, 4), (0, 4), (2, 4)]
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_where_ranks_land(what: str) -> None:
    case = CASES[what]
    found = decided(*case.have, damage=case.damage)
    assert (found.step, found.boundary_number, bases(found)) == (case.step, case.boundary, case.bases)
    assert (found.lost, found.behind) == (case.lost, case.behind)
    assert (ranks_by(Way.EQUAL, found), ranks_by(Way.COPIES, found)) == (case.equal, case.copies)
    assert found.is_forked or not case.behind


def test_different_timelines_make_a_new_one() -> None:
    found = decided(summarize(0, 5, [0], timeline=2), summarize(1, 6, [0]))
    assert (found.step, found.timeline, found.is_forked) == (5, 2, True)
    assert decided(summarize(0, 9, [0, 7]), lost(1)).is_forked
    assert not decided(summarize(0, 9, [0, 7]), summarize(1, 8, [0, 7])).is_forked


def test_nothing_anywhere_is_a_fresh_run() -> None:
    assert agree([lost(0), lost(1)], Damage()) is None


def test_a_step_can_be_asked_for() -> None:
    found = decided(summarize(0, 9, [0, 7]), summarize(1, 8, [0, 7]), step=5)
    assert (found.step, bases(found)) == (5, [(0, 0), (1, 0)])
    with pytest.raises(
        RecoveryError, match="step 9 is not covered on all ranks: rank 0 has steps 0 to 9, rank 1 has steps 0 to"
    ):
        decided(summarize(0, 9, [0, 7]), summarize(1, 8, [0, 7]), step=9)
    with pytest.raises(RecoveryError, match=r"step 3 is not covered on all ranks: ranks 0, 1 have .*`keep=`"):
        decided(*(summarize(rank, 9, [5], boundary_counts={5: 0, 9: 1}) for rank in (0, 1)), step=3)


def test_a_lost_journal_with_shards_is_named_with_what_the_others_have() -> None:
    held = [replace(summarize(rank, 9, [0, 7], shared=False), is_sharded=True) for rank in (0, 2)]
    with pytest.raises(RecoveryError, match=r"ranks 0, 2 have steps 0 to 9; .*ranks 1 are gone, and with them their shards"):
        decided(held[0], lost(1), held[1])


def test_a_lost_journal_of_ranks_that_are_not_the_same_cannot_be_replaced() -> None:
    with pytest.raises(RecoveryError, match="the journals of ranks 1 are gone"):
        decided(summarize(0, 9, [0, 7], shared=False), lost(1))


def test_a_lost_journal_costs_nothing_where_others_have_all_that_it_had() -> None:
    found = decided(whole(0, 9, [0, 7]), lost(1), lost(2), whole(3, 9, [0, 7]))
    assert (found.step, found.lost, ranks_by(Way.EQUAL, found), ranks_by(Way.COPIES, found)) == (9, (1, 2), (1, 2), ())
    assert bases(found) == [(0, 7), (0, 7), (0, 7), (3, 7)]
    (note, *_) = describe_lost_journals(found)
    assert note.endswith("rank 1 is gone: the other ranks logged the same, so that no step is lost")


def test_ranks_that_came_to_other_states_do_not_stand_for_one_that_is_lost() -> None:
    found = decided(whole(0, 9, [0, 7]), lost(1), whole(2, 9, [0, 7]), damage=Damage(states_differ=True))
    assert (found.step, ranks_by(Way.EQUAL, found)) == (7, ())
    (told,) = describe_lost_journals(found)
    assert "rank 1 is gone, and the states of the other ranks differ: all ranks go back to the checkpoint of step 7" in told


def test_a_lost_journal_of_ranks_that_were_seen_to_be_equal_costs_nothing() -> None:
    equal = [replace(summarize(rank, 14, [0, 7], shared=False), last_equal_step=10) for rank in (0, 2)]
    found = decided(equal[0], lost(1), equal[1])
    assert (found.step, ranks_by(Way.EQUAL, found), bases(found)) == (14, (1,), [(0, 7), (0, 7), (2, 7)])
    with pytest.raises(RecoveryError, match=r"ranks 1 are gone, and with them .* the weights of the ranks differ"):
        decided(equal[0], lost(1), equal[1], damage=Damage(states_differ=True))
    with pytest.raises(RecoveryError, match="the weights of the ranks were never seen to be equal"):
        decided(equal[0], lost(1), replace(equal[1], last_equal_step=-1))


def test_a_journal_that_ends_early_and_counts_is_named_with_its_step() -> None:
    """An older backup, where each rank has what no other has."""
    found = decided(summarize(0, 30, [0, 10], shared=False), summarize(1, 12, [0, 10], shared=False))
    assert (found.step, found.short_journals, found.last_step) == (12, ((1, 12),), 30)
    assert describe_lost_journals(found) == [
        "the journal of rank 1 ends at step 12, and those of other ranks reach step 30: all ranks go back to step 12"
    ]
    assert describe_lost_journals(decided(summarize(0, 9, [0]), summarize(1, 8, [0]))) == []  # they died together


def test_a_damaged_journal_counts_as_lost_where_the_rank_before_has_copies() -> None:
    held = [kept_by(rank, 9, [0, 4]) for rank in range(3)]
    for damage in (Damage(records={(1, 6)}), Damage(boundaries={(1, 6)})):
        found = decided(*held, damage=damage)
        assert (found.step, found.lost, ranks_by(Way.COPIES, found), found.damaged) == (9, (1,), (1,), (1,))
        assert bases(found) == [(0, 4), (0, 4), (2, 4)]
        assert describe_lost_journals(found)[0].startswith(
            "the journal of rank 1 is damaged, and counts as lost: its gradient shards and its own state"
        )
    found = decided(*held, damage=Damage(records={(1, 6), (2, 8)}))  # neighbours: the one whose damage comes first
    assert (found.step, found.damaged) == (7, (1,))
    assert decided(*held, damage=Damage(records={(1, 6)}), step=8).damaged == (1,)
    found = decided(*held, damage=Damage(records={(1, 6)}, shards={(1, 7)}))  # and the copy is no better
    assert (found.step, found.damaged) == (6, (1,))
    alone = [summarize(rank, 9, [0, 4]) for rank in range(3)]  # without copies
    assert (decided(*alone, damage=Damage(records={(1, 6)})).step, decided(*alone).damaged) == (5, ())


def test_a_hole_in_a_journal_is_damage() -> None:
    parts = (LogRange(0, 5, dict.fromkeys(range(1, 6), 1)), LogRange(6, 9, dict.fromkeys(range(7, 10), 1)))
    torn = replace(kept_by(1, 9, [0, 4]), ranges=parts)
    found = decided(kept_by(0, 9, [0, 4]), torn, kept_by(2, 9, [0, 4]))
    assert (found.step, ranks_by(Way.COPIES, found), found.damaged) == (9, (1,), (1,))
    whole_again = replace(torn, checkpoints=(*torn.checkpoints, CheckpointRef(8, "step-8", 1, 1)))
    assert decided(kept_by(0, 9, [0, 4]), whole_again, kept_by(2, 9, [0, 4])).damaged == ()
    assert decided(kept_by(0, 10, [0, 4]), whole_again, kept_by(2, 10, [0, 4])).damaged == ()  # it died a step before


def test_nobody_who_has_trained_starts_as_it_was_built() -> None:
    """An older copy of one journal, and a hole in the other."""
    torn = replace(summarize(1, 9, [], first=7, shared=False), ranges=(LogRange(5, 6, {6: 1}), LogRange(7, 9, {8: 1, 9: 1})))
    with pytest.raises(RecoveryError, match="no step that all ranks can reach"):
        decided(summarize(0, 0, [0], shared=False, boundary_counts={}), replace(torn, is_sharded=True))


@pytest.mark.parametrize(
    ("steps", "count"),
    [([(10, 20), (10, 20, 30)], 2), ([(10, 20), (10, 30)], 1), ([(10,), ()], 0), ([(), ()], 0), ([(7, 9)], 2)],
)
def test_ranks_compare_what_all_have_recorded(steps: list[tuple[int, ...]], count: int) -> None:
    assert count_common(steps) == count


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
