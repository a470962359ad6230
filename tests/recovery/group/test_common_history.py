"""Which past a journal holds, where others have gone back and on again: a pure decision, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.recovery.group.test_agreement import decided, summarize
from tranlogs.base.errors import RecoveryError
from tranlogs.recovery.group.exchange import decode, encode
from tranlogs.recovery.group.summary import (
    UNKNOWN_IDS,
    JournalSummary,
    TimelineIds,
    extend_timeline_ids,
    get_timeline_ids,
    keep_common_history,
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
