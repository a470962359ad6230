"""When all bytes are looked at for writes that leave no trace, and when what is found may be older than the last units."""

from __future__ import annotations

from tranlogs.training.write_forecast import FIRST_UNITS, ScanSchedule

DEAR, STEP = 0.0005, 0.01  # seconds: a look costs a twentieth of a step


def after(looks: ScanSchedule, units: int) -> list[int]:
    """Go on for some units; those at whose boundaries a full look was taken, counted from now."""
    full = []
    for unit in range(units):
        looks.count_unit()
        if looks.is_full_scan_due("at a boundary", DEAR, STEP):
            full.append(unit)
    return full


def test_the_first_looks_are_full_and_later_ones_cost_a_share() -> None:
    looks = ScanSchedule()
    assert after(looks, FIRST_UNITS - 1) == list(range(FIRST_UNITS - 1))
    assert after(looks, 100) == [9, 19, 29, 39, 49, 59, 69, 79, 89, 99]


def test_a_cheap_look_is_always_full() -> None:
    looks = ScanSchedule()
    after(looks, 2 * FIRST_UNITS)
    for _ in range(20):
        looks.count_unit()
        assert looks.is_full_scan_due("before a step", 10e-6, STEP)
        assert looks.is_full_scan_due("at a boundary", 0.0045 * STEP, STEP)


def test_a_place_where_a_write_was_found_is_looked_at_each_time() -> None:
    looks = ScanSchedule()
    after(looks, 2 * FIRST_UNITS)
    looks.note_write("at a boundary")
    assert after(looks, 30) == list(range(30))
    assert not looks.note_write("at a boundary")


def test_a_write_that_a_rare_look_finds_may_be_old() -> None:
    looks = ScanSchedule()
    after(looks, FIRST_UNITS - 1 + 20)  # ends with a full look
    assert after(looks, 10) == [9]
    assert looks.note_write("at a boundary")


def test_a_write_that_a_partial_look_finds_may_be_old() -> None:
    looks = ScanSchedule()
    after(looks, FIRST_UNITS - 1 + 24)
    assert looks.note_write("at a boundary")


def test_a_write_that_is_found_in_the_unit_after_a_full_look_is_new() -> None:
    looks = ScanSchedule()
    after(looks, 10)
    assert not looks.note_write("at a boundary")
