"""The instruments of the tests: which members the gate runs, seeded faults that fit the code, fault points that fire, the words
that a user may read."""

from __future__ import annotations

import errno
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tranlogs
from tests.mutants.__main__ import MUTANTS
from tests.mutants.mutant import ROOT, Mutant
from tests.public.words import Heard
from tests.support import campaign
from tests.support.faults import failing, times_hit
from tranlogs.base import failpoints

# What the gate runs


DIMENSIONS = (["a", "b", "c"], [1, 2], [True, False], ["x", "y", "z", "w"])


def pairs(combinations: list[tuple[Any, ...]]) -> set[Any]:
    return {pair for one in combinations for pair in itertools.combinations(enumerate(one), 2)}


@pytest.mark.parametrize("allows", [lambda *_: True, lambda a, b, c, d: c or a != "b"], ids=["all", "some"])
def test_the_gate_leaves_out_no_value_of_a_product(allows: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "is_soak", lambda: False)
    every = [one for one in itertools.product(*DIMENSIONS) if allows(*one)]
    chosen = campaign.pairwise(*DIMENSIONS, allows=allows)
    assert set(chosen) <= set(every)
    assert pairs(chosen) == pairs(every)
    assert len(chosen) < len(every) / 2
    once = campaign.each_once(*DIMENSIONS)
    assert [set(values) for values in zip(*once, strict=True)] == [set(values) for values in DIMENSIONS]
    monkeypatch.setattr(campaign, "is_soak", lambda: True)
    assert campaign.pairwise(*DIMENSIONS, allows=allows) == every


@pytest.mark.parametrize(("count", "chosen"), [(3, {0, 3, 4}), (0, set()), (9, set(range(6)))])  # a1, b2, c1
def test_a_sample_has_values_that_the_others_do_not_have(count: int, chosen: set[int]) -> None:
    assert campaign.sample([{("name", name), ("size", size)} for name in "abc" for size in "12"], count) == chosen


# Seeded faults: `python -m tests.mutants` runs them.


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_and_names_tests_that_exist(mutant: Mutant) -> None:
    compile(mutant.mutated(), mutant.path, "exec")
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), test
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), test


def test_names_are_told_apart() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


# Fault points: a test that asks for a fault gets it, there and as often as it says.


SOURCES = Path(tranlogs.__file__).parent


def outcome(name: str = "log.write") -> int:
    """The error of one hit, 0 for none."""
    try:
        failpoints.hit(name)
    except OSError as error:
        return error.errno or -1
    return 0


@pytest.mark.parametrize(
    ("rule", "outcomes"),
    [
        ("log.write=enospc", [errno.ENOSPC] * 4),
        ("log.write=eio@1", [errno.EIO, 0, 0, 0]),
        ("log.write=eio@3", [0, 0, errno.EIO, 0]),
        ("log.write=enospc@2+", [0, errno.ENOSPC, errno.ENOSPC, errno.ENOSPC]),
        ("log.sync=eio", [0, 0, 0, 0]),
        ("", [0, 0, 0, 0]),
        ("log.sync=eio,log.write=eio@2", [0, errno.EIO, 0, 0]),
    ],
)
def test_a_rule_fires_when_it_says(rule: str, outcomes: list[int]) -> None:
    with failing(rule):
        assert [outcome() for _ in outcomes] == outcomes
        assert times_hit("log.write") in (0, len(outcomes))
    assert outcome() == 0


def test_the_error_names_the_point() -> None:
    with failing("log.sync=eio"), pytest.raises(OSError, match=r"failpoint log\.sync"):
        failpoints.hit("log.sync")


@pytest.mark.parametrize("rule", ["log.typo=eio", "log.write=explode", "log.write", "=eio", "log.write=eio@x"])
def test_a_rule_that_names_nothing_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=re.escape(rule) if "@x" not in rule else "invalid literal"):
        failpoints._parse(rule)


def test_kill_is_sigkill_at_the_nth_hit() -> None:
    code = "from tranlogs.base.failpoints import hit\nfor i in range(5): print(i, flush=True); hit('log.write')"
    environment = {"TRANLOGS_FAILPOINTS": "log.write=kill@3", "PYTHONPATH": str(SOURCES.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-9, "0\n1\n2\n")


def test_every_point_is_in_the_code_exactly_where_the_list_says() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        found |= set(re.findall(r"\bhit\(\"([a-z._]+)\"\)", path.read_text()))
    assert found == set(failpoints.POINTS)


# What a user reads: forms are told from others, and from noise.

RUN = Path("/runs/1")
RESUMED = "recovered to step 12 (epoch 2, after 12 batches, checkpoint 7 + 5 replayed, 0.45 s, {})"


def test_lines_of_other_forms_and_repetitions_are_found() -> None:
    Heard([f"TranLogs: {RUN} goes on at epoch 2, batch 3: {RESUMED.format('bit-exact')}"]).demand_forms(RUN)
    with pytest.raises(AssertionError, match="not of a known form"):
        Heard([f"TranLogs: {RUN} continues: {RESUMED.format('bit-exact')}"]).demand_forms(RUN)
    with pytest.raises(AssertionError, match="said twice"):
        Heard(["TranLogs: " + RESUMED.format("not verified"), "  so it is"], [f"{RUN}: so it is"]).demand_forms(RUN)


def test_a_warning_without_need_and_a_missing_one_are_found() -> None:
    heard = Heard(warnings=[f"{RUN}: the sky is blue"])
    heard.demand_quiet(["sky"])
    with pytest.raises(AssertionError, match="the sky is blue"):
        heard.demand_quiet([])
    with pytest.raises(AssertionError, match="rain"):
        heard.demand_quiet(["sky", "rain"])


@pytest.mark.parametrize(("said", "exact"), [("bit-exact", None), ("not verified", True), ("NOT exact from step 3", True)])
def test_a_line_that_is_not_the_last_word_is_found(said: str, exact: bool | None) -> None:
    heard = Heard(["TranLogs: " + RESUMED.format(said)])
    with pytest.raises(AssertionError, match="the last word is"):
        heard.demand_verdict(exact, RUN)
