"""Which journals and which past count, after rewinds, losses and another number of processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.recovery.test_group_agreement import decided, lost, summarize
from tranlogs.base.errors import RecoveryError, UsageError
from tranlogs.recovery.group.decide import Damage, choose_target, group_by_generation
from tranlogs.recovery.group.exchange import Known, Opening, OwnJournal, Solo, decode, encode
from tranlogs.recovery.group.journals import TimelineUse
from tranlogs.recovery.group.reshard import describe_resize
from tranlogs.recovery.group.summary import (
    UNKNOWN_IDS,
    CheckpointRef,
    JournalSummary,
    LogRange,
    TimelineIds,
    extend_timeline_ids,
    get_timeline_ids,
    keep_common_history,
    remove_duplicates,
)

FIRST: TimelineIds = (("a", 0),)


REWOUND: TimelineIds = (("a", 0), ("b", 10))


def held(rank: int, last: int, past: TimelineIds, timeline: int = 1, **more: bool) -> JournalSummary:
    return replace(summarize(rank, last, [*range(0, last + 1, 5)], timeline=timeline, shared=False), timeline_ids=past, **more)


def counted(*summaries: JournalSummary) -> list[int]:
    """The last step that counts, by rank."""
    return [max(one.list_steps(), default=-1) for one in keep_common_history(summaries)[0]]


def test_steps_that_others_have_gone_back_from_do_not_count() -> None:
    """Whole states would otherwise be made of the parts of two histories."""
    mixed = [held(0, 25, REWOUND, 2, is_sharded=True), held(1, 30, FIRST, is_sharded=True)]
    assert decided(*mixed).step == 25
    found, told = keep_common_history(mixed)
    assert decided(*found).step == 10
    assert told == [
        "the journal of rank 1 forks from the history of the run at step 10: its steps after that, up to step 30, are on a "
        "timeline that the other ranks have rewound, and do not count"
    ]


def test_where_all_hold_the_same_the_rank_of_another_past_is_one_that_ends_early() -> None:
    mixed = [replace(held(0, 25, REWOUND, 2), is_replicated=True), replace(held(1, 30, FIRST), is_replicated=True)]
    assert decided(*mixed).step == 30  # of what was given up
    found = decided(*keep_common_history(mixed)[0])
    assert (found.step, found.lost, found.behind) == (25, (1,), (1,))


def test_a_past_that_goes_on_where_another_ends_is_the_same() -> None:
    """The second had not begun its part of the newest timeline when all died."""
    found, told = keep_common_history([held(0, 11, REWOUND, 2), held(1, 10, FIRST)])
    assert (counted(*found), told) == ([11, 10], [])
    assert counted(held(0, 30, REWOUND, 2), held(1, 29, REWOUND, 2)) == [30, 29]


def test_two_rewinds_part_where_the_earlier_one_began() -> None:
    other: TimelineIds = (("a", 0), ("c", 7))
    assert counted(held(0, 30, REWOUND, 2), held(1, 30, other, 3)) == [7, 30]
    assert counted(held(0, 30, REWOUND, 2), held(1, 30, REWOUND, 2), held(2, 30, other, 2)) == [30, 30, 7]


def test_what_is_wholly_of_another_past_is_gone() -> None:
    late = replace(held(1, 30, (("b", 10), ("d", 20)), 2), checkpoints=())
    assert counted(held(0, 30, (("b", 10), ("c", 12)), 3), late) == [30, 12]
    log_range = replace(late.ranges[0], after_step=15, boundary_counts=dict.fromkeys(range(16, 31), 1))
    found, _ = keep_common_history([held(0, 30, (("b", 10), ("c", 12)), 3), replace(late, ranges=(log_range,))])
    assert found[1].is_empty


def test_journals_of_different_runs_are_refused_by_rank() -> None:
    with pytest.raises(RecoveryError, match="the journal of rank 1 belongs to another run than the journal of rank 0"):
        keep_common_history([held(0, 20, FIRST), held(1, 20, (("z", 0),))])
    with pytest.raises(RecoveryError, match="the journal of rank 0 belongs to another run than the journals of ranks 1, 2"):
        keep_common_history([held(0, 40, (("z", 0), ("y", 3)), 9), held(1, 20, FIRST), held(2, 20, FIRST)])


def test_journals_from_before_there_were_ids_count_as_they_did() -> None:
    assert counted(held(0, 25, UNKNOWN_IDS, 2), held(1, 30, UNKNOWN_IDS)) == [25, 30]
    assert counted(held(0, 25, (("b", 20),), 2), held(1, 30, UNKNOWN_IDS)) == [25, 30]  # one that was lost, and began anew
    assert counted(held(0, 25, (*UNKNOWN_IDS, ("b", 20)), 2), held(1, 30, UNKNOWN_IDS)) == [25, 20]


def test_each_number_of_processes_has_its_own_newest_past() -> None:
    before = [held(rank, 20, FIRST) for rank in range(3)]
    after = [replace(held(rank, 30, (("a", 0), ("b", 20)), 2), first_timeline=2) for rank in range(2)]
    assert counted(*before, *after) == [20, 20, 20, 30, 30]


def test_what_is_recorded_of_a_past_has_an_end() -> None:
    assert extend_timeline_ids(FIRST, 12) == [["a", 0]]
    assert extend_timeline_ids(REWOUND, 9, "c") == [["a", 0], ["c", 9]]
    assert extend_timeline_ids(UNKNOWN_IDS, 9) == []
    assert get_timeline_ids({"past": extend_timeline_ids(UNKNOWN_IDS, 9, "c")}) == (("", 0), ("c", 9))
    long = extend_timeline_ids(tuple((str(n), n) for n in range(1000)), 1000, "c")
    assert (len(long), long[0], long[-2:]) == (256, ["", 0], [["999", 999], ["c", 1000]])


def test_it_is_sent_with_its_summary() -> None:
    one = held(0, 5, REWOUND)
    assert decode(encode([one])) == [one]


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


class Others(Solo):
    """A transport over which the other ranks have sent these openings."""

    def __init__(self, *openings: Opening) -> None:
        self._openings = openings

    def gather(self, value: Any) -> Sequence[Any]:
        others = [TimelineUse() for _ in self._openings] if isinstance(decode(value), TimelineUse) else self._openings
        return [value, *map(encode, others)]


def opened(folder: Path, *others: Opening) -> Known:
    own = OwnJournal(folder, 0, 1 + len(others), "new0")
    return own.open(Others(*others), lambda sharding: False, None)


def journal(folder: Path, checkpoint: str = "step-00000010-t0001") -> Path:
    """A folder that has the form of a journal with a checkpoint."""
    (folder / "log").mkdir(parents=True)
    (folder / "checkpoints" / checkpoint).mkdir(parents=True)
    return folder


def opening(summary: JournalSummary) -> Opening:
    return Opening((summary,), writer=summary.rank)


def test_no_run_begins_anew_while_its_journals_lie_where_other_ranks_run(tmp_path: Path) -> None:
    """Whether all nodes have changed places, or some."""
    journal(tmp_path / "run" / "rank1")
    place = re.escape(str(tmp_path / "run" / "rank1"))
    words = rf"their own ranks are empty: that of rank 1 where rank 0 runs \({place}\)\. No new run was started\."
    for others in ((lost(1),), (lost(1), summarize(2, 9, [0, 7]))):
        with pytest.raises(RecoveryError, match=words):
            opened(tmp_path / "run" / "rank0", *map(opening, others))


def test_a_journal_beside_that_its_own_rank_reads_is_in_its_place(tmp_path: Path) -> None:
    journal(tmp_path / "run" / "rank1")
    known = opened(tmp_path / "run" / "rank0", opening(summarize(1, 9, [0, 7])))
    assert [summary.is_empty for summary in known.summaries] == [True, False]


def test_a_journal_that_its_own_rank_cannot_read_counts_as_lost(tmp_path: Path) -> None:
    journal(tmp_path / "run" / "rank1")
    known = opened(tmp_path / "run" / "rank0", Opening((lost(1),), 1, nearby=(1,)))
    assert all(summary.is_empty for summary in known.summaries)


def test_a_journal_without_a_step_is_no_loss(tmp_path: Path) -> None:
    journal(tmp_path / "run" / "rank1", "step-00000000-t0001")
    assert all(summary.is_empty for summary in opened(tmp_path / "run" / "rank0", opening(lost(1))).summaries)


def test_what_one_rank_cannot_do_ends_the_start_of_all(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "rank0"
    with pytest.raises(RecoveryError, match="another rank cannot read its journal: rank 1: the disk fails"):
        opened(folder, Opening((lost(1),), 1, error="the disk fails"))
    with pytest.raises(UsageError, match=r"must name the same step on all ranks, got \[None, 5\]"):
        opened(folder, Opening((lost(1),), 1, step=5))
    with pytest.raises(RecoveryError, match="under the names of other ranks: rank1 is the journal of rank 2"):
        opened(folder, Opening((summarize(1, 9, [0]),), writer=2), opening(summarize(2, 9, [0])))
