from __future__ import annotations

import pytest

from tranlogs.rehearsal.comparison.printed import Noise, find_other_line, parse, split_lines
from tranlogs.rehearsal.judging import merge_indices


@pytest.mark.parametrize(
    ("line", "text", "numbers"),
    [
        ("step 3: loss 1.5e-3, lr -0.1", "step #: loss #, lr #", ("3", "1.5e-3", "-0.1")),
        ("loss nan", "loss #", ("nan",)),
        ("epoch 2 took 3.25 s", "epoch # took <time>", ("2",)),
        ("6/6 - 0s - 12ms/step - loss: 2.5", "#/# - <time> - <time> - loss: #", ("6", "6", "2.5")),
        ("2026-11-25 20:38:57,123 INFO loss 7", "<time><time> INFO loss #", ("7",)),
        ("[01:23<04:56, 12.3it/s] 8", "[<time><<time>, <time>] #", ("8",)),
        ("layer conv2d_1 of model-v2", "layer conv2d_1 of model-v2", ()),
    ],
)
def test_line_is_split_into_text_and_numbers_without_times(line: str, text: str, numbers: tuple[str, ...]) -> None:
    assert parse(line) == (text, numbers)


def test_of_a_progress_bar_what_stays_on_a_terminal_counts() -> None:
    assert split_lines(b"\x1b[1m1/2\x1b[0m loss 3\r\b\b2/2 loss 2\r\n\n  done \n1/2 loss 2\r") == ["2/2 loss 2", "done"]


@pytest.mark.parametrize(
    ("expected", "found", "other"),
    [
        (["loss 1"], ["loss 1"], None),
        (["loss 1"], ["loss 2"], "'loss 2' instead of 'loss 1'"),
        (["loss 1", "end"], ["loss 1"], "'end' is missing"),
        (["loss 1"], ["loss 1", "again"], "'again' is not there without a kill"),
        (["took 1.0 s"], ["took 2.0 s"], None),
    ],
)
def test_first_line_that_differs_is_found(expected: list[str], found: list[str], other: str | None) -> None:
    assert find_other_line(expected, found, Noise()) == other


def test_numbers_that_differ_without_a_kill_do_not_count() -> None:
    noise = Noise()
    noise.learn(["process 71: loss 1.0", "free memory 12"], ["process 82: loss 1.0", "free memory 12"])
    assert find_other_line(["process 71: loss 2.0"], ["process 93: loss 2.0"], noise) is None
    assert find_other_line(["process 71: loss 2.0"], ["process 93: loss 2.5"], noise) is not None


def test_lines_that_come_and_go_without_a_kill_do_not_count() -> None:
    noise = Noise()
    noise.learn(["loss 1", "cache is warm"], ["loss 1"])
    assert find_other_line(["loss 2", "cache is warm"], ["loss 2"], noise) is None
    assert find_other_line(["loss 2"], ["loss 3"], noise) is not None


def test_names_that_differ_in_indices_are_merged() -> None:
    names = ["a[0][7].t", "b", "a[1][7].t", "c[3]", "a[12][7].t"]
    assert merge_indices(names) == ["a[*][7].t", "b", "c[3]"]
