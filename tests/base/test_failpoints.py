"""Fault points: a test that asks for a fault gets it, there and as often as it says."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tranlogs
from tests.support.faults import failing, times_hit
from tranlogs.base import failpoints

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
