"""Which journals are of the group after the number of processes has changed: a pure decision, case by case."""

from __future__ import annotations

import pytest

from tranlogs.base.errors import RecoveryError
from tranlogs.recovery.group.decide import Damage, choose_target, group_by_generation
from tranlogs.recovery.group.reshard import describe_resize
from tranlogs.recovery.group.summary import CheckpointRef, JournalSummary, LogRange, remove_duplicates


def part(rank: int, world: int, first_timeline: int, first: int, last: int) -> JournalSummary:
    """What a journal holds of a generation, which began with a checkpoint at the step `first`."""
    counts = dict.fromkeys(range(first + 1, last + 1), 1)
    ranges = (LogRange(first, last, counts),) if counts else ()
    ref = CheckpointRef(first, f"step-{first}", 0, 0 if ranges else -1)
    return JournalSummary(rank, f"/run/rank{rank}", f"id{rank}", world, True, first_timeline, ranges, (ref,), first_timeline)


def landed(*summaries: JournalSummary, step: int | None = None) -> tuple[int, int, int, tuple[int, ...], bool]:
    """Generation, its number of processes, step, the lost, and whether it is the newest."""
    found = choose_target(group_by_generation(summaries), Damage(), step)
    assert found is not None
    return found.generation.first_timeline, found.generation.world, found.agreement.step, found.agreement.lost, found.is_newest


FOUR = [part(rank, 4, 1, 0, 20 + (rank == 3)) for rank in range(4)]


def test_nothing_anywhere_is_a_fresh_run() -> None:
    empty = [JournalSummary(0, "/run/rank0", "a"), JournalSummary(1, "/run/rank1", "b")]
    assert choose_target(group_by_generation(empty), Damage()) is None


def test_all_members_of_the_newest_generation_count_and_nobody_else() -> None:
    assert landed(*FOUR, part(0, 2, 2, 20, 33), part(1, 2, 2, 20, 32)) == (2, 2, 32, (), True)


def test_a_journal_that_is_gone_is_one_of_the_newest_generation_only_if_that_had_it() -> None:
    assert landed(*FOUR[:3], part(0, 2, 2, 20, 33), part(1, 2, 2, 20, 32)) == (2, 2, 32, (), True)
    assert landed(*FOUR, part(0, 2, 2, 20, 33)) == (2, 2, 20, (1,), True)


def test_a_beginning_that_was_cut_short_never_was() -> None:
    assert landed(*FOUR, part(0, 2, 2, 20, 20)) == (1, 4, 20, (), False)
    assert landed(*FOUR, part(0, 2, 2, 20, 20), part(1, 2, 2, 20, 20)) == (2, 2, 20, (), True)
    assert landed(part(0, 2, 2, 20, 20), *FOUR[:2]) == (2, 2, 20, (1,), True)  # what came before it is not whole, either


def test_a_beginning_that_was_cut_short_behind_another_one() -> None:
    two = [part(0, 2, 2, 20, 33), part(1, 2, 2, 20, 33)]
    assert landed(*FOUR, *two, part(2, 3, 3, 33, 33)) == (2, 2, 33, (), False)


def test_a_step_before_the_change_is_found_where_it_was_recorded() -> None:
    two = [part(0, 2, 2, 20, 33), part(1, 2, 2, 20, 33)]
    assert landed(*FOUR, *two, step=25) == (2, 2, 25, (), True)
    assert landed(*FOUR, *two, step=20) == (2, 2, 20, (), True)
    assert landed(*FOUR, *two, step=11) == (1, 4, 11, (), False)
    with pytest.raises(RecoveryError, match=r"step 40 is not covered on all ranks: ranks 0, 1 have steps 20 to 33$"):
        landed(*FOUR, *two, step=40)


def test_what_a_process_says_of_its_own_journal_counts_before_what_others_say() -> None:
    seen = JournalSummary(1, "/far", "seen", 2, sender=0)
    own = JournalSummary(1, "/run/rank1", "own", 2)
    assert remove_duplicates([seen, own]) == [own]
    sent = [JournalSummary(3, "/a", "a", 4, sender=1), JournalSummary(3, "/b", "b", 4, sender=0)]
    assert remove_duplicates(sent)[0].sender == 0


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (4, 1, "rank 0 continues with its own; those of ranks 1 to 3 end"),
        (2, 1, "rank 0 continues with its own; those of rank 1 end"),
        (1, 3, "rank 0 continues with its own; ranks 1 to 2 continue with the buffers of rank 0, and with new random"),
    ],
)
def test_what_does_not_carry_over_is_said_by_rank(before: int, now: int, words: str) -> None:
    told = describe_resize(20, before, now)
    assert "summed in another order" in told[0]
    assert words in told[1]
