"""What a user reads of a unit that was computed again and differs: two or three sentences, with the line to add."""

from __future__ import annotations

from typing import get_args

import pytest

from tranlogs.training import describe_difference
from tranlogs.training.recheck.comparison import Difference, Kind

NAME = "grad/transformer.h.11.attention.projection.weight"


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_difference_is_told_in_few_words(kind: Kind) -> None:
    text = describe_difference(Difference(1507, kind, NAME, "differs from the record by up to 0.0123", ratio=0.2))
    assert text.startswith("the last batch before the crash (step 1507) was computed again, and ")
    assert text.endswith("The recorded state holds, so no finished step is lost")
    assert "optimizer." in text
    assert len(text) < 430
    assert text.count(". ") == 2


def test_a_remembered_value_that_the_script_sets_again_is_told_by_its_name() -> None:
    name = "tracked.remember(...).values.local_iter_num"
    text = describe_difference(Difference(73, "state", name, "is 1, and 73 in the record"))
    assert "and state.local_iter_num is 1, and 73 in the record. It is remembered, so it came back" in text
    assert "The script assigns it after recover()" in text
    assert "optimizer.remember(local_iter_num=...) alone" in text
    assert "name=" not in text
    item = describe_difference(Difference(73, "state", "tracked.remember(...).values.seen[1][0].a", "is 1.5", ratio=0.1))
    assert "and state.seen[1][0].a is 1.5. " in item
    assert "optimizer.remember_times(seen=...)" in item
    assert max(len(text), len(item)) < 560


def test_a_remembered_value_that_a_turn_changes_before_its_forward_pass_is_told_where_to_change_it() -> None:
    name = "tracked.remember(...).values.it"
    text = describe_difference(Difference(6, "state", name, "is 8, and 7 in the record", ratio=0.1, is_outside=True))
    assert "Change state.it after optimizer.step(), or take turns from optimizer.steps(until=...)" in text
    assert "optimizer.remember_times(it=...)" in text
    assert len(text) < 720


def test_a_difference_as_small_as_rounding_and_a_time_are_told_in_few_words() -> None:
    rounding = describe_difference(Difference(3, "gradients", NAME, "differs by up to 1e-9", ratio=1e-7))
    time = describe_difference(Difference(3, "state", "tracked.thing", "is 2.1, and 1.9 in the record", may_be_time=True))
    assert "torch.use_deterministic_algorithms(True)" in rounding
    assert "a measured time is never the same twice" in time
    many = describe_difference(Difference(3, "state", "buffers.mean", "differs"), starts_over=["iters", "total"])
    assert "It may be what starts over here: iters, total. The recorded state holds" in many
    meter = describe_difference(Difference(3, "state", "tracked.batch_time.val", "is 0.1, and 0.2 in the record"))
    assert "leave out of track(...) what measures times" in meter
    assert max(len(rounding), len(time)) < 430
