"""What `make test` leaves to `make test-variants`: together they run every test once."""

from __future__ import annotations

import pytest

from tests.support.samples import sample

pytest_plugins = ["pytester"]

MARKED = """
    import pytest

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("size", [1, 2])
    @pytest.mark.parametrize("name", ["a", "b"])
    def test_many(name, size):
        pass

    @pytest.mark.sampled(0)
    def test_variant():
        pass

    def test_other():
        pass
"""
CONFTEST = """
    from tests.support import samples

    def pytest_addoption(parser):
        samples.add_options(parser)

    def pytest_collection_modifyitems(config, items):
        left_out = samples.not_in_part(config, items)
        items[:] = [item for item in items if item not in left_out]
"""
SAMPLES = {"test_many[a-1]", "test_many[b-2]", "test_other"}
VARIANTS = {"test_many[a-2]", "test_many[b-1]", "test_variant"}


def values(**named: object) -> set[tuple[str, str]]:
    return {(name, repr(value)) for name, value in named.items()}


def test_a_sample_has_values_that_the_others_do_not_have() -> None:
    members = [values(name=name, size=size) for name in "abc" for size in (1, 2)]
    assert sample(members, 3) == {0, 3, 4}  # a1, b2, c1
    assert sample(members, 0) == set()
    assert sample(members, 9) == set(range(6))


@pytest.mark.parametrize(
    ("option", "runs"), [("--samples", SAMPLES), ("--variants", VARIANTS), ("--strict-markers", SAMPLES | VARIANTS)]
)
def test_both_parts_together_are_all_tests(pytester: pytest.Pytester, option: str, runs: set[str]) -> None:
    pytester.makeini("[pytest]\nmarkers = sampled(n): n members\nfilterwarnings = ignore")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(MARKED)
    found = pytester.runpytest_inprocess(option, "-v", "-p", "no:cacheprovider")
    ran = {line.split("::")[1].split()[0] for line in found.outlines if "PASSED" in line}
    assert ran == runs
