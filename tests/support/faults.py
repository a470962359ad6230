"""Fault points set from inside a test, instead of by the environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tranlogs.base import failpoints


@contextmanager
def failing(text: str) -> Iterator[None]:
    """The faults of `text` (as in TRANLOGS_FAILPOINTS) happen inside the block."""
    before = failpoints._rules
    failpoints._rules = failpoints._parse(text)
    try:
        yield
    finally:
        failpoints._rules = before


def times_hit(name: str) -> int:
    """How often a point that has a rule was reached."""
    rule = failpoints._rules.get(name)
    return 0 if rule is None else rule.count
