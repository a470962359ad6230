"""Comparison of the environment in which a run was recorded with the present one: library versions, flags, devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def compare_environments(recorded: Mapping[str, Any], now: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    """Return the differences that can change rounding, one sentence each.

    Args:
        recorded: environment that the run recorded.
        now: environment of this process.
        labels: keys to compare, each with its name in a message.
    """
    return [
        f"{label} differs: the run was recorded with {recorded.get(key)!r}, now it is {now.get(key)!r}; "
        "what is computed from here on can round differently"
        for key, label in labels.items()
        if recorded.get(key) != now.get(key)
    ]
