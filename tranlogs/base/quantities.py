"""Sizes and times as text: parsing of "2GiB" and "10min", formatting as "1.5 GiB" and "3.2 min"."""

from __future__ import annotations

import re

from .errors import UsageError

SECONDS = {
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "days": 86400.0,
}
BYTES = {
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def parse_bytes(text: str, what: str) -> int:
    """Parse a size such as "512MiB", "2GB" or "1048576". `what` is the name of the setting, for the error message.

    Raises:
        UsageError: the text is not a size. A small number without a unit is refused, because the unit was probably forgotten.
    """
    number, unit = _parts(text)
    if number is None or unit not in {"", *BYTES} or (not unit and 0 < number < BYTES["mib"]):
        raise UsageError(f'{what} {text!r}: give a size like "512MiB" or "2GB"')
    return int(number * BYTES.get(unit, 1))


def parse_seconds(text: str, what: str) -> float:
    """Parse a time such as "10s", "15min" or "7d". `what` is the name of the setting, for the error message.

    Raises:
        UsageError: the text is not a time.
    """
    number, unit = _parts(text)
    if number is None or unit not in {"", *SECONDS}:
        raise UsageError(f'{what} {text!r}: give a time like "10s", "15min" or "7d"')
    return number * SECONDS.get(unit, 1.0)


def format_bytes(nbytes: int) -> str:
    """Format a size, for example as "1.5 GiB"."""
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min((nbytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{nbytes / 1024**power:.1f} {_UNITS[power - 1]}"


def format_seconds(seconds: float) -> str:
    """Format a time, for example as "0.4 s" or "3.2 min"."""
    for unit, least in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * least:
            return f"{seconds / least:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def count(number: int, noun: str) -> str:
    """Format a number with a noun, for example as "1 step" or "12,000 steps"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _parts(text: str) -> tuple[float | None, str]:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    return (float(found[1]), found[2].lower()) if found else (None, "")
