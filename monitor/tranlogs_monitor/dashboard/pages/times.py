"""Moments and durations in the words of the pages."""

from __future__ import annotations

import time

from tranlogs.base.quantities import format_seconds


def ago(at: float, now: float) -> str:
    """Return how long ago a moment was, like "3.0 s ago"."""
    return "just now" if now - at < 1 else f"{format_seconds(now - at)} ago"


def moment(at: float, now: float) -> str:
    """Return a moment in local time: the time if the moment is today, else the date and the time."""
    then, today = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M", then)


def clock(at: float) -> str:
    """Return the date, the time and the time zone of a moment."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))
