"""The line that a user reads after a recovery."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tranlogs.recovery.report import RecoveryReport, Restart


def test_line_names_step_epoch_and_batches() -> None:
    report = RecoveryReport(step=412, batch=824, epoch=1, checkpoint_step=400, replayed=12, seconds=0.912)
    assert str(report) == (
        "recovered to step 412 (epoch 2, after 824 batches, checkpoint 400 + 12 replayed, 0.91 s, state bit-exact)"
    )


def test_line_names_the_loop_where_the_run_has_more_than_one() -> None:
    report = RecoveryReport(step=412, loop=2, batch=24, epoch=1, checkpoint_step=400, replayed=12)
    assert str(report).startswith("recovered to step 412 (loop 2, epoch 2, after 24 batches, checkpoint 400")
    assert report.as_dict()["loop"] == 2
    assert RecoveryReport().loop == 1


@pytest.mark.parametrize(
    ("note", "restarts", "word"),
    [
        ("best starts over", (Restart("remember", "best", "0"),), "state bit-exact"),
        ("lr was changed between recover() and the first batch", (), "bit-exact"),
    ],
)
def test_the_word_is_of_the_state_alone_where_a_part_of_the_loop_starts_over(
    note: str, restarts: tuple[Restart, ...], word: str
) -> None:
    report = RecoveryReport(step=3, checkpoint_step=0, replayed=3, recheck="equal", notes=("other", note), restarts=restarts)
    assert f"0.00 s, {word})\n" in str(report)
    assert report.exact is True
    assert "0.00 s, NOT exact)" in str(replace(report, exact=False))
    assert "0.00 s, not verified)" in str(replace(report, exact=None))
    assert "0.00 s, being proven)" in str(replace(report, exact=None, recheck="pending"))


def test_line_names_no_epoch_before_the_second_and_no_batches_that_are_not_counted() -> None:
    first = RecoveryReport(step=1, batch=1, checkpoint_step=0, replayed=1, exact=None)
    assert str(first) == "recovered to step 1 (after 1 batch, checkpoint 0 + 1 replayed, 0.00 s, not verified)"
    uncounted = RecoveryReport(step=3, checkpoint_step=0, replayed=3, exact=False, first_divergent_step=2)
    assert str(uncounted) == "recovered to step 3 (checkpoint 0 + 3 replayed, 0.00 s, NOT exact from step 2)"


def test_line_of_a_run_that_had_finished_nothing_claims_no_exactness() -> None:
    found = RecoveryReport(checkpoint_step=0, seconds=0.2, is_at_start=True, notes=("so it is",))
    assert str(found) == ("starts from the beginning: nothing was finished before the crash (step 0, 0.20 s)\n  so it is")
