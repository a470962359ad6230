"""What a run pays and would pay, from what it has measured; and the same in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tranlogs.catalog import MeasuredRow
from tranlogs.retention.advice import COLUMNS, Advice, Choice, advise, describe_choice

# A plain step takes 0.1 s, one with gradients 0.125 s and its redo a tenth of that. A checkpoint costs 0.02 + 0.06 / 2 s.
ROW = MeasuredRow(
    phase="inputs",
    tensors="gradients",
    overhead=0.05,
    cost=0.25,
    step_seconds=0.1,
    step_bytes=10**6,
    redo_seconds=0.0125,
    is_redo_measured=True,
    load_seconds=0.5,
    stall_seconds=0.02,
    writing_seconds=0.06,
    interval_seconds=None,
)
STATE = 10**6


def advice_of(state_bytes: int = STATE, at: float = 0.0, world: int = 1, **changes: Any) -> Advice:
    return advise(replace(ROW, **changes), state_bytes, at, world=world)


def find(advice: Advice, log: str, every: str) -> Choice:
    (choice,) = [one for one in advice.choices if (one.log, one.every) == (log, every)]
    return choice


@pytest.mark.parametrize(
    ("log", "every", "changes", "interval", "log_share", "crash", "bytes_a_day", "waste"),
    [
        # sqrt(2 * 0.05 * 3600) = 19 s; waste: 0.05 / 19 + (0.5 + 19 / 2) / 3600
        ("inputs", "auto", {}, 18.974, 0.0, 19.474, 86_400e6 / 18.974, 0.0054094),
        ("inputs", "10min", {}, 600.0, 0.0, 600.5, 144e6, 0.0835556),
        ("inputs", "auto", {"mtbf_seconds": 14_400.0}, 37.947, 0.0, 38.447, 86_400e6 / 37.947, 0.0026699),
        # Redo takes a tenth of the time: sqrt(10) as long; waste: 0.25 + 0.05 / 60 + (0.5 + 6 / 2) / 3600
        ("gradients", "auto", {}, 60.0, 0.25, 6.5, 692.64e9, 0.2518056),
        ("gradients", "1h", {}, 3600.0, 0.25, 360.5, 691.224e9, 0.3001528),
        ("gradients", "auto", {"log_bytes_max": 240 * 10**6}, 30.0, 0.25, 3.5, 694.08e9, 0.2522222),
        ("gradients", "auto", {"cost": -0.01}, 53.6656, 0.0, 7.2082, 865.6099e9, 0.0020021),
        # What is not known is not made up.
        ("gradients", "auto", {"cost": None}, 53.6656, None, 7.2082, 865.6099e9, None),
        ("gradients", "10min", {"tensors": ""}, 600.0, None, None, None, None),
        ("weights", "auto", {}, None, None, None, None, None),
        ("inputs", "auto", {"stall_seconds": 0.0, "writing_seconds": 0.0}, None, 0.0, None, None, None),
    ],
)
def test_what_a_choice_costs(
    log: str,
    every: str,
    changes: dict[str, Any],
    interval: float | None,
    log_share: float | None,
    crash: float | None,
    bytes_a_day: float | None,
    waste: float | None,
) -> None:
    found = find(advice_of(**changes), log, every)
    figures = (found.interval_seconds, found.log_share, found.crash_seconds, found.bytes_a_day, found.expected_waste)
    expected = (interval, log_share, crash, bytes_a_day, waste)
    assert [figure is None for figure in figures] == [one is None for one in expected], found
    for figure, one in zip(figures, expected, strict=True):
        assert figure is None or figure == pytest.approx(one, rel=1e-3)
    assert (found.disk_years is None) == (bytes_a_day is None)
    if bytes_a_day is not None:
        assert found.disk_years == pytest.approx(600e12 / bytes_a_day / 365.25, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "log", "line"),
    [
        ({}, "inputs", 'log="inputs", checkpoint_every="auto"'),
        ({"cost": 0.0, "redo_seconds": 0.001}, "gradients", 'log="gradients", checkpoint_every="auto"'),
        ({"tensors": "weights", "cost": 0.0, "redo_seconds": 0.001}, "weights", 'log="weights", checkpoint_every="auto"'),
        ({"mtbf_seconds": 21_600.0}, "inputs", 'log="inputs", checkpoint_every="mtbf=21600s"'),
        ({"is_settled": True}, "gradients", 'log="gradients", checkpoint_every="auto"'),
        ({"cost": None}, None, 'log="auto", checkpoint_every="auto"'),
        ({"stall_seconds": 0.0, "writing_seconds": 0.0}, None, 'log="auto", checkpoint_every="auto"'),
    ],
)
def test_the_line_to_write_is_that_of_the_choice_that_wastes_the_least(
    changes: dict[str, Any], log: str | None, line: str
) -> None:
    found = advice_of(**changes)
    assert (None if found.best is None else found.best.log, found.line) == (log, line)
    assert ("is not for this run" in found.unknown[-1]) == (changes.keys() <= {"is_settled", "world"} and bool(changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "gradients would cost 25 % of a step, and 5 % are allowed: no tensors are logged; a crash costs up to 19 s of "
            "computing",
        ),
        (
            {"phase": "gradients", "cost": 0.02, "step_seconds": 0.102},
            "gradients cost 2 % of a step, and 5 % are allowed: they are logged; a crash costs up to 7 s of redo",
        ),
        (
            {"phase": "awaiting", "cost": 0.02},
            "gradients cost 2 % of a step, and 5 % are allowed: they are logged from the next checkpoint on",
        ),
        ({"phase": "trial"}, "what gradients cost is being measured"),
        (
            {"phase": "gradients", "is_settled": True},
            "gradients are logged whatever they cost: training would not compute the same steps again; a crash costs up to 7 s "
            "of redo",
        ),
        (
            {"is_repeatable": False},
            "gradients would cost 25 % of a step, and 5 % are allowed: no tensors are logged; a crash costs up to 19 s of "
            "computing, which gives other bits, since the arithmetic does not repeat itself",
        ),
        ({"overhead": None, "interval_seconds": 40.0}, "no tensors are logged; a crash costs up to 40 s of computing"),
        ({"phase": "gradients", "tensors": "weights", "cost": None, "interval_seconds": 0.0}, "weights are logged"),
    ],
)
def test_what_is_recorded_now_in_words(changes: dict[str, Any], words: str) -> None:
    assert advice_of(**changes).recorded == words


def test_what_the_run_pays_now_is_of_its_own_interval_and_failures() -> None:
    found = advice_of(interval_seconds=120.0, trained_seconds=1800.0, failures=2, since=1000.0, at=4600.0)
    assert (found.now.log, found.now.every, found.now.interval_seconds) == ("inputs", "now", 120.0)
    assert (found.mtbf_seconds, found.trained_seconds, found.failures) == (3000.0, 5400.0, 2)
    assert found.describe() == {
        "recorded": found.recorded,
        "failures": "2 interruptions in 90.0 min of training; one in 50.0 min is expected",
        "best": 'log="inputs", checkpoint_every="auto": the run wastes 0.59 %; it wastes 2.1 % now',
    }
    unknown = advice_of(cost=None)
    assert unknown.describe()["best"] == 'not known; log="auto", checkpoint_every="auto" measures what it depends on'
    assert 'not measured: what gradients cost in a step (log="auto" tries it)' in unknown.unknown


def test_a_choice_has_a_word_for_each_column() -> None:
    words = dict(zip(COLUMNS, describe_choice(find(advice_of(), "gradients", "auto")), strict=True))
    assert list(words.values())[:8] == ["gradients", "auto", "60 s", "25 %", "0.083 %", "645.1 GiB", "2.4 years", "6.5 s"]
    assert words["waste at\n1 h"] == "25 %"
    nothing = describe_choice(find(advise(MeasuredRow(), 0, 0.0), "weights", "auto"))
    assert set(nothing[2:]) == {"-"}
    assert advise(MeasuredRow(), 0, 0.0).best is None
