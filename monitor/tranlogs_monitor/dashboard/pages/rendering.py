"""Templates (templates/*.html), filled with facts.

Every value is escaped when it enters a template. No template turns that off (`safe`, `autoescape`), which a test checks.
"""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tranlogs.base import quantities

from . import times

__all__ = ["render"]


def render(template: str, **facts: Any) -> bytes:
    """Fill a template.

    Args:
        template: name of a file in templates/.
        facts: the values that the template refers to; a missing one is an error.
    """
    return _ENVIRONMENT.get_template(template).render(facts).encode()


def _decimals(value: float, places: int) -> str:
    return f"{value:.{places}f}"


def _group_digits(number: int) -> str:
    return f"{number:,}"


_ENVIRONMENT = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_ENVIRONMENT.filters |= {
    "ago": times.ago,
    "clock": times.clock,
    "count": quantities.count,
    "decimals": _decimals,
    "grouped": _group_digits,
    "moment": times.moment,
    "seconds": quantities.format_seconds,
    "size": quantities.format_bytes,
}
