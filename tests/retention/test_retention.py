"""When checkpoints are taken, which are kept, what pruning must leave, and what would be lost now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.faults import failing
from tranlogs.base.config import GIB, MIB
from tranlogs.base.errors import LogUnavailable, UsageError
from tranlogs.catalog import (
    Catalog,
    CheckpointRow,
    CommonRow,
    Incident,
    SegmentRow,
    StoreRow,
    TimelineRow,
    Watermarks,
    segment_key,
)
from tranlogs.retention import (
    Automatic,
    CheckpointFacts,
    EveryBytes,
    EverySeconds,
    EverySteps,
    KeepAll,
    KeepEvery,
    KeepLatest,
    RecoveryTime,
    as_policy,
    as_retention,
)
from tranlogs.retention.checkpoint_interval import observe_mtbf
from tranlogs.retention.lost_work import estimate_lost_work, estimate_seconds_since
from tranlogs.retention.prune import is_protected, plan_retirement, retire

COST = {"stall_seconds": 0.02, "writing_seconds": 0.06}


def facts(
    steps: int = 0,
    seconds: float = 0.0,
    log_bytes: int = 0,
    replay: float = 0.0,
    load: float = 0.0,
    state_bytes: int = 0,
    free_bytes: int = 1 << 62,
    **others: Any,
) -> CheckpointFacts:
    return CheckpointFacts(steps, seconds, log_bytes, replay, load, state_bytes, free_bytes, **others)


@pytest.mark.parametrize(
    ("policy", "when", "due"),
    [
        (EverySteps(5), facts(steps=5), True),
        (EverySeconds(10), facts(steps=1, seconds=9.9), False),
        (EverySeconds(10), facts(steps=1, seconds=10), True),
        (EveryBytes(1000), facts(steps=1, log_bytes=999), False),
        (EveryBytes(1000), facts(steps=1, log_bytes=1000), True),
        (RecoveryTime(10), facts(steps=7, replay=1.0, load=1.0), False),
        (RecoveryTime(10), facts(steps=8, replay=1.0, load=1.0), True),
        (RecoveryTime(10), facts(steps=10**6), False),
        # A stall of 20 ms and 60 ms of writing are worth sqrt(2 * (0.02 + 0.03) * 3600) = 19 s of steps computed again,
        (Automatic(), facts(9, 18.9, **COST, is_recomputed=True), False),
        (Automatic(), facts(9, 19.0, **COST, is_recomputed=True), True),
        # and so of those of which it is not known how long their redo takes.
        (Automatic(), facts(9, 18.9, **COST), False),
        (Automatic(), facts(9, 19.0, **COST), True),
        # Redo in a ninth of the time: three times as long.
        (Automatic(), facts(900, 56.9, replay=56.9 / 8100, **COST), False),
        (Automatic(), facts(900, 57.0, replay=57.0 / 8100, **COST), True),
        # As many failures as the run has seen, unless the user has said how many there are.
        (Automatic(), facts(9, 38.0, **COST, mtbf_seconds=14_400), True),
        (Automatic(14_400), facts(9, 37.9, **COST, is_recomputed=True), False),
        (Automatic(14_400), facts(9, 38.0, **COST, is_recomputed=True, mtbf_seconds=60), True),
        (Automatic(60), facts(9, 19.0, **COST, is_recomputed=True, mtbf_seconds=14_400), True),
        # A checkpoint of which nothing is known is one of a millisecond: thousands of tiny steps pass before it is due.
        (Automatic(), facts(5000, 2.6, replay=2.6 / 5000), False),
        (Automatic(), facts(5000, 2.7, replay=2.7 / 5000), True),
        (EveryBytes(1000), facts(9, 18.9, stall_seconds=0.05, is_recomputed=True), False),
        (EveryBytes(1000), facts(9, 19.0, stall_seconds=0.05, is_recomputed=True), True),
        # The log must fit, whatever a checkpoint costs.
        (Automatic(), facts(1, log_bytes=5 * GIB - 1, state_bytes=GIB, free_bytes=80 * GIB), False),
        (Automatic(), facts(1, log_bytes=5 * GIB, state_bytes=GIB, free_bytes=80 * GIB), True),
        (Automatic(), facts(1, log_bytes=2 * GIB - 1, state_bytes=GIB, free_bytes=80 * GIB, budget_bytes=8 * GIB), False),
        (Automatic(), facts(1, log_bytes=2 * GIB, state_bytes=GIB, free_bytes=80 * GIB, budget_bytes=8 * GIB), True),
        (Automatic(), facts(1, log_bytes=GIB, state_bytes=GIB, free_bytes=0), True),
        (Automatic(), facts(9, log_bytes=4 * MIB, state_bytes=100, free_bytes=0), True),
    ],
)
def test_a_checkpoint_is_due_when_the_policy_says(policy: Any, when: CheckpointFacts, due: bool) -> None:
    assert policy.is_due(when) is due


@pytest.mark.parametrize(
    ("trained", "failures", "mtbf"), [(0, 0, 3600), (0, 1, 1800), (3600, 1, 3600), (86_400, 0, 90_000), (600, 9, 420)]
)
def test_the_time_between_two_failures_is_an_hour_and_what_the_run_has_seen(trained: float, failures: int, mtbf: float) -> None:
    assert observe_mtbf(trained, failures) == mtbf


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        (500, EverySteps(500)),
        ("500 steps", EverySteps(500)),
        ("10min", EverySeconds(600)),
        ("250ms", EverySeconds(0.25)),
        ("256MiB", EveryBytes(256 << 20)),
        ("1 GB", EveryBytes(10**9)),
        ("rto=30s", RecoveryTime(30)),
        ("mtbf=6h", Automatic(21_600)),
    ],
)
def test_what_users_write_for_checkpoint_every(written: Any, policy: Any) -> None:
    assert as_policy(written) == policy


@pytest.mark.parametrize(
    "written", [0, -1, True, None, 1.5, "", "often", "10 parsecs", "rto=5MiB", "mtbf=soon", "0s", "0 steps", "-5min", []]
)
def test_what_is_no_policy_is_refused(written: Any) -> None:
    with pytest.raises(UsageError, match="checkpoint_every must be"):
        as_policy(written)


@pytest.mark.parametrize(
    ("policy", "steps", "kept"),
    [
        (KeepLatest(2), [1, 2, 3], {2, 3}),
        (KeepEvery(10, latest=1), [5, 10, 15, 20, 25], {10, 20, 25}),
        (KeepAll(), [1, 2, 3], {1, 2, 3}),
        (as_retention(3), [1, 2, 3, 4], {2, 3, 4}),
        (as_retention(lambda steps: steps[:1]), [1, 2, 3], {1}),
    ],
)
def test_policies_keep_what_they_say(policy: Any, steps: list[int], kept: set[int]) -> None:
    assert set(policy.kept(steps)) == kept


class CleanUp:
    """DLRover's interface."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def clean_up(self, step: int, delete_func: Callable[[int], None]) -> None:
        self.steps.append(step)
        if len(self.steps) > 2:
            delete_func(self.steps.pop(0))


def test_a_clean_up_strategy_deletes_what_it_says() -> None:
    policy = as_retention(CleanUp())
    assert set(policy.kept([1])) == {1}
    assert set(policy.kept([1, 2])) == {1, 2}
    assert set(policy.kept([1, 2, 3])) == {2, 3}


@pytest.mark.parametrize("written", [None, True, "3", 0, -1])
def test_what_is_no_retention_is_refused(written: Any) -> None:
    with pytest.raises(UsageError, match="keep must be"):
        as_retention(written)
    with pytest.raises(UsageError, match="at least 1"):
        KeepEvery(0)


def checkpoint(step: int, sequence: int, timeline: int = 1) -> CheckpointRow:
    return CheckpointRow(f"step-{step}-t{timeline}-{sequence}", step, sequence, "0", timeline, 1, float(sequence))


def segment(ordinal: int, last: int, state: Any = "sealed", timeline: int = 1) -> SegmentRow:
    return SegmentRow(ordinal, f"{ordinal:016x}", f"{ordinal}.seg", 1, state, timeline, 0, 0, last)


def test_segments_behind_the_oldest_kept_checkpoint_go() -> None:
    plan = plan_retirement(
        KeepLatest(2),
        [checkpoint(1, 10), checkpoint(2, 20), checkpoint(3, 30)],
        [segment(1, 9), segment(2, 20), segment(3, 21), segment(4, 40), segment(5, 15, "open")],
    )
    assert [row.step for row in plan.checkpoints] == [1]
    assert [row.ordinal for row in plan.segments] == [1, 2]
    assert plan_retirement(KeepLatest(1), [], [segment(1, 9)]).segments == (), "without a checkpoint nothing goes"


@pytest.mark.parametrize("kept", [lambda steps: [], lambda steps: [99], lambda steps: steps[:1]])
def test_the_newest_checkpoint_stays_whatever_a_policy_says(kept: Callable[[Sequence[int]], Collection[int]]) -> None:
    plan = plan_retirement(as_retention(kept), [checkpoint(1, 10), checkpoint(2, 20)], [])
    assert 2 not in [row.step for row in plan.checkpoints]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (KeepLatest(2), [(1, 1), (2, 2)]),
        (KeepEvery(1, latest=0), [(1, 1), (2, 2), (3, 1)]),
        (KeepAll(), [(1, 1), (2, 1), (3, 1), (2, 2)]),
    ],
)
def test_of_two_checkpoints_of_a_step_the_one_left_behind_goes(policy: Any, kept: list[tuple[int, int]]) -> None:
    rows = [checkpoint(1, 10), checkpoint(2, 20), checkpoint(3, 30), checkpoint(2, 21, 2)]
    plan = plan_retirement(policy, rows, [], [TimelineRow(1), TimelineRow(2, 1, 12, 1)])
    assert sorted((row.step, row.timeline) for row in rows if row not in plan.checkpoints) == sorted(kept)


@pytest.mark.parametrize(("common", "kept"), [(3, [3]), (2, [2, 3]), (1, [1, 3]), (0, [1, 2, 3])])
def test_what_no_rank_is_behind_stays(common: int, kept: list[int]) -> None:
    """Of a journal among several, whose newest checkpoint the others may not have."""
    rows = [checkpoint(1, 10), checkpoint(2, 20), checkpoint(3, 30)]
    plan = plan_retirement(KeepLatest(1), rows, [segment(1, 10), segment(2, 20)], (), CommonRow(common))
    assert [row.step for row in rows if row not in plan.checkpoints] == kept
    assert [row.ordinal for row in plan.segments] == [n for n in (1, 2) if n <= kept[0] and common]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8, unique=True), st.integers(1, 4), st.integers(0, 3))
def test_what_recovery_to_the_newest_step_needs_is_never_retired(ends: list[int], latest: int, forks: int) -> None:
    """Whatever the timelines: the newest checkpoint on the lineage, and every entry behind it."""
    timelines = [TimelineRow(1)] + [TimelineRow(n, n - 1, 10 * n) for n in range(2, forks + 2)]
    newest_timeline = timelines[-1].number
    rows = [checkpoint(end, end, 1 + end % newest_timeline) for end in ends]
    rows.append(checkpoint(50, 100, newest_timeline))
    segments = [segment(i, end) for i, end in enumerate([*sorted(ends), 99, 100, 101, 150])]
    plan = plan_retirement(KeepLatest(latest), rows, segments, timelines)
    kept = [row for row in rows if row not in plan.checkpoints]
    assert rows[-1] in kept
    horizon = min(row.sequence for row in kept)
    assert all(row.last_sequence <= horizon for row in plan.segments)
    assert len(kept) >= min(latest, len({row.step for row in rows}))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (segment(1, 10), False),  # it ends where the checkpoint is
        (segment(2, 11), True),
        (segment(3, 9, "open"), True),
        (segment(4, 99, "retired"), False),
        (segment(5, 99, timeline=3), False),  # of a timeline that was left
        (replace(segment(6, 99, timeline=2), base_sequence=19), True),
        (replace(segment(7, 99, timeline=2), base_sequence=20), False),  # behind the fork
    ],
)
def test_what_lies_behind_the_checkpoint_on_the_lineage_is_protected_from_the_monitor(row: SegmentRow, expected: bool) -> None:
    limits: dict[int, int | None] = {1: None, 2: 20}
    assert is_protected(row, checkpoint(1, 10), limits) is expected
    assert is_protected(row, None, limits) is (row.state != "retired"), "without a checkpoint all is needed"


def test_rows_go_before_bytes(tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path, writable=True)
    rows = [checkpoint(1, 10), checkpoint(2, 20)]
    for row in rows:
        (tmp_path / row.name).mkdir()
        (tmp_path / row.name / "state").write_bytes(b"x")
    with catalog.transaction() as tables:
        for row in rows:
            tables.put(f"checkpoint/{row.name}", row)
        tables.put(segment_key(1), segment(1, 10))
    with failing("catalog.before_commit=eio@1"), pytest.raises(LogUnavailable):
        retire(catalog, tmp_path, KeepLatest(1))
    assert [row.step for row in catalog.checkpoints()] == [1, 2]
    assert all((tmp_path / row.name / "state").exists() for row in rows)
    with failing("checkpoint.delete=eio"), pytest.raises(OSError, match=r"checkpoint\.delete"):
        retire(catalog, tmp_path, KeepLatest(1))
    assert [row.step for row in catalog.checkpoints()] == [2]
    assert (tmp_path / rows[0].name / "state").exists()
    assert [row.state for row in catalog.segments()] == ["retired"]
    catalog.close()


MARKS = Watermarks(committed=100, synced=90, archived=60, persisted=40)
STORE = StoreRow("file:///there", "me")
SUSPENDED = [Incident(1, "No space left on device", 100, 0.0)]
OVER = [Incident(1, "No space left on device", 50, 0.0, 60, 1.0)]
HISTORY = [(0.0, 0), (10.0, 50), (20.0, 100), (500.0, 100)]  # nothing has been trained since 20
NO_STORE, IN_MEMORY = "everything: there is no store", "everything: the run lies in memory (tmpfs)"
AGAIN = "until training has computed them again"


@pytest.mark.parametrize(
    ("marks", "facts", "safe", "words"),
    [
        (MARKS, {}, (100, 90, 40), ("no finished step", "10 steps", "60 steps")),
        (MARKS, {"checkpoint_step": 95}, (100, 95, 40), ("no finished step", "5 steps", "60 steps")),  # it is on disk
        (Watermarks(100, 0), {"checkpoint_step": 80}, (100, 80, 0), ("no finished step", "20 steps", NO_STORE)),
        (Watermarks(100, 100, 60, 0), {}, (100, 100, 60), ("no finished step", "no finished step", "40 steps")),
        (Watermarks(99, 99), {"checkpoint_step": 100}, (99, 99, 0), ("no finished step", "no finished step", NO_STORE)),
        (
            Watermarks(100, 99),
            {"store": STORE},
            (100, 99, 0),
            ("no finished step", "1 step", "everything: the store has no step yet"),
        ),
        (MARKS, {"history": HISTORY}, (100, 90, 40), ("no finished step", "10 steps (about 2.0 s)", "60 steps (about 12 s)")),
        (MARKS, {"incidents": SUSPENDED}, (100, 90, 40), ("all steps after 100", "at least 10 steps", "at least 60 steps")),
        (MARKS, {"incidents": OVER}, (100, 90, 40), ("no finished step", "10 steps", "60 steps")),
        (
            Watermarks(100, 99),
            {"checkpoint_step": 50, "in_memory": True},
            (100, 0, 0),
            ("no finished step", IN_MEMORY, NO_STORE),
        ),
        (MARKS, {"in_memory": True}, (100, 40, 40), ("no finished step", "60 steps", "60 steps")),
        # Redo leads to a step, and training computes the rest, as far as records of it are left.
        (
            MARKS,
            {"redo_step": 80, "checkpoint_step": 50},
            (100, 90, 40),
            (f"20 steps {AGAIN}", f"10 steps, and 10 steps {AGAIN}", "60 steps"),
        ),
        (MARKS, {"redo_step": 99}, (100, 90, 40), ("1 step until training has computed it again", "10 steps", "60 steps")),
        (
            MARKS,
            {"redo_step": 80, "incidents": SUSPENDED},
            (100, 90, 40),
            (f"all steps after 100, and 20 steps {AGAIN}", f"at least 10 steps, and 10 steps {AGAIN}", "at least 60 steps"),
        ),
    ],
)
def test_what_would_be_lost(marks: Watermarks, facts: dict[str, Any], safe: tuple[int, ...], words: tuple[str, ...]) -> None:
    """For the process, the machine and the site: the newest step that is left, and how many are gone."""
    found = estimate_lost_work(marks, **{"checkpoint_step": 0, **facts})
    assert tuple(one.describe() for one in found) == words
    assert tuple(one.safe_step for one in found) == safe


def test_after_a_rewind_only_what_came_since_counts() -> None:
    history = [(0.0, 0), (10.0, 100), (20.0, 60), (30.0, 80)]
    assert estimate_seconds_since(history, 70) == pytest.approx(5.0)
    assert estimate_seconds_since(history, 50) is None, "the history does not reach back so far on this timeline"
    assert estimate_seconds_since([], 0) is None
    assert estimate_seconds_since([(7.0, 5)], 5) == 0.0
