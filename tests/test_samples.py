"""What the gate runs of tests that are marked `sampled`."""

from __future__ import annotations

from tests.support.samples import sample


def values(**named: object) -> set[tuple[str, str]]:
    return {(name, repr(value)) for name, value in named.items()}


def test_a_sample_has_values_that_the_others_do_not_have() -> None:
    members = [values(name=name, size=size) for name in "abc" for size in (1, 2)]
    assert sample(members, 3) == {0, 3, 4}  # a1, b2, c1
    assert sample(members, 0) == set()
    assert sample(members, 9) == set(range(6))
