"""The opening of a group recovery: what ranks tell each other before they choose, and where it ends for all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.recovery.group.test_agreement import lost, summarize
from tranlogs.base.errors import RecoveryError, UsageError
from tranlogs.log.decoded_record import Entry
from tranlogs.recovery.group.exchange import Exchange, Known, Opening, OwnJournal, Solo, decode, encode
from tranlogs.recovery.group.journals import TimelineUse
from tranlogs.recovery.group.shards import JoinedEntry
from tranlogs.recovery.group.summary import JournalSummary


class Others(Solo):
    """A transport over which the other ranks have sent these openings."""

    def __init__(self, *openings: Opening) -> None:
        self._openings = openings

    def gather(self, value: Any) -> Sequence[Any]:
        others = [TimelineUse() for _ in self._openings] if isinstance(decode(value), TimelineUse) else self._openings
        return [value, *map(encode, others)]


def opened(folder: Path, *others: Opening) -> Known:
    own = OwnJournal(folder, 0, 1 + len(others), "new0")
    return own.open(Exchange(Others(*others)), lambda sharding: False, None)


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
    words = r"their own ranks are empty: that of rank 1 where rank 0 runs\. No new run was started\."
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


def test_a_joined_record_offers_nothing_that_would_be_of_one_shard() -> None:
    offered = {name for name in dir(JoinedEntry) if not name.startswith("_")}
    assert offered == {"read", "tensor_names"}
    assert not issubclass(JoinedEntry, Entry)
